-- Which commits raised the peak, and at which line?
--
-- Versions, their ranks and their runs are compared as in `grown_lines`. The peak of a run is the
-- one of its largest GPU. The line is in the function that grew most: of its lines, the one that
-- grew most. If no function grew, file, line, function and function_grown_bytes are null.
--
-- Parameters:
--   before VARCHAR (commit) = '': The commit to compare with. If empty, the version before.
--   after VARCHAR (commit) = '': The commit to look at. If empty, all, or the newest with `before`.
--   command VARCHAR = '%': LIKE pattern for the command line.
--   min_bytes BIGINT = 1048576: Smallest growth to report, in bytes.
--   min_share DOUBLE = 0.05: Smallest growth to report, as a share of the bytes before.
-- Columns:
--   program VARCHAR: The command line, as a list in JSON.
--   git_commit VARCHAR: The commit.
--   before_commit VARCHAR: The commit before it.
--   first_started_unix_ns BIGINT (nanoseconds since 1970): Start of its first run.
--   runs BIGINT (number): Runs of the commit that are compared.
--   before_bytes BIGINT (bytes): The largest peak of any usual run before.
--   bytes BIGINT (bytes): The smallest peak of any usual run of the commit.
--   file VARCHAR: File of the line that grew most, or the library.
--   line BIGINT (number): The line.
--   function VARCHAR: Its function.
--   function_grown_bytes BIGINT (bytes): Growth of the function.
-- include _growth.sql
, sizes AS (
  SELECT pair, count(DISTINCT run) AS runs FROM compared WHERE is_after = 1 GROUP BY pair
), placed_growth AS (
  SELECT pair, file, line, function, after_bytes - before_bytes AS grown_bytes,
    row_number() OVER (
      PARTITION BY pair
      ORDER BY after_bytes - before_bytes DESC NULLS LAST, file NULLS LAST, line NULLS LAST,
        function NULLS LAST, is_backward) AS place
  FROM grown
)
SELECT p.program, p.after_commit AS git_commit, p.before_commit,
  p.started_unix_ns AS first_started_unix_ns, z.runs, k.before_bytes,
  k.after_bytes AS bytes, g.file, g.line, g.function, g.grown_bytes AS function_grown_bytes
FROM pairs p
JOIN chosen k ON k.pair = p.pair AND k.name = ''
JOIN sizes z ON z.pair = p.pair
LEFT JOIN placed_growth g ON g.pair = p.pair AND g.place = 1
ORDER BY first_started_unix_ns NULLS LAST, p.program, git_commit NULLS LAST
