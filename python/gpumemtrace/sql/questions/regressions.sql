-- Which commits raised the peak, and at which line?
--
-- Only runs with a known peak count, of which all traces are whole and complete and all
-- processes exited normally; an unknown exit code is no failure. A truncated or failed run may
-- end before its peak. Commits are in the order of their first such runs. A commit counts with
-- the median of the peaks of its runs (the lower one of an even number), and a run with its
-- largest GPU. The line is in the function that grew most between the two commits: of the lines
-- of this function, the one that grew most. Functions and lines count like peaks: a commit with
-- the median of its runs, of which those without the function have 0, and a run with the GPU at
-- whose peak they hold most. If no function grew, file, line, function and function_grown_bytes
-- are null.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
--   min_bytes BIGINT = 1048576: Smallest growth to report, in bytes.
--   min_share DOUBLE = 0.05: Smallest growth to report, as a share of the peak before.
-- Columns:
--   git_commit VARCHAR: The commit.
--   before_commit VARCHAR: The commit before it.
--   first_started_unix_ns BIGINT (nanoseconds since 1970): Start of the first of these runs.
--   runs BIGINT (number): Runs of the commit that count.
--   before_bytes BIGINT (bytes): Peak of the commit before.
--   bytes BIGINT (bytes): Peak of the commit.
--   file VARCHAR: File of the line that grew most, or the library.
--   line BIGINT (number): The line.
--   function VARCHAR: Its function.
--   function_grown_bytes BIGINT (bytes): Growth of the function.
WITH comparable AS (
  SELECT run
  FROM runs
  GROUP BY run
  HAVING max(peak_live_bytes) IS NOT NULL
    AND min(CASE WHEN is_whole AND is_complete AND ending = 'exit'
      AND (exit_code = 0 OR exit_code IS NULL) THEN 1 ELSE 0 END) = 1
), run_peaks AS (
  SELECT r.run, min(r.git_commit) AS git_commit, min(r.started_unix_ns) AS started_unix_ns,
    max(r.peak_live_bytes) AS bytes
  FROM runs r
  JOIN comparable c ON c.run = r.run
  WHERE r.git_commit IS NOT NULL AND r.peak_live_bytes IS NOT NULL
    AND COALESCE(r.command_json, '') LIKE :command
  GROUP BY r.run
), placed AS (
  SELECT git_commit, started_unix_ns, bytes,
    row_number() OVER (PARTITION BY git_commit ORDER BY bytes, run) AS place,
    count(*) OVER (PARTITION BY git_commit) AS runs
  FROM run_peaks
), commits AS (
  SELECT git_commit, min(started_unix_ns) AS started_unix_ns, max(runs) AS runs,
    max(CASE WHEN 2 * place IN (runs, runs + 1) THEN bytes END) AS bytes
  FROM placed
  GROUP BY git_commit
), pairs AS (
  SELECT git_commit, started_unix_ns, runs, bytes,
    lag(git_commit) OVER (ORDER BY started_unix_ns NULLS FIRST, git_commit) AS before_commit,
    lag(bytes) OVER (ORDER BY started_unix_ns NULLS FIRST, git_commit) AS before_bytes
  FROM commits
), regressed AS (
  SELECT git_commit, before_commit, started_unix_ns, runs, before_bytes, bytes
  FROM pairs
  WHERE bytes - before_bytes >= :min_bytes
    AND CAST(bytes - before_bytes AS DOUBLE) >= :min_share * CAST(before_bytes AS DOUBLE)
), gpu_lines AS (
  SELECT r.git_commit, s.run, s.rank, s.device, COALESCE(s.file, s.module) AS file, s.line,
    s.function, s.is_backward, CAST(sum(s.peak_bytes) AS BIGINT) AS bytes
  FROM sites s
  JOIN runs r ON r.run = s.run AND r.rank = s.rank
  JOIN comparable c ON c.run = r.run
  WHERE s.layer = 'torch' AND s.peak_bytes > 0 AND r.git_commit IS NOT NULL
    AND COALESCE(r.command_json, '') LIKE :command
  GROUP BY r.git_commit, s.run, s.rank, s.device, COALESCE(s.file, s.module), s.line, s.function,
    s.is_backward
), gpu_amounts AS (
  -- Of functions, and of their lines.
  SELECT 1 AS is_line, git_commit, run, file, line, function, is_backward, bytes FROM gpu_lines
  UNION ALL
  SELECT 0, git_commit, run, file, CAST(NULL AS BIGINT), function, is_backward,
    CAST(sum(bytes) AS BIGINT)
  FROM gpu_lines
  GROUP BY git_commit, run, rank, device, file, function, is_backward
), run_amounts AS (
  SELECT is_line, git_commit, run, file, line, function, is_backward, max(bytes) AS bytes
  FROM gpu_amounts
  GROUP BY is_line, git_commit, run, file, line, function, is_backward
), placed_amounts AS (
  SELECT a.is_line, a.git_commit, a.file, a.line, a.function, a.is_backward, a.bytes, c.runs,
    -- Runs without this function come first: they have 0.
    c.runs - count(*) OVER (
      PARTITION BY a.is_line, a.git_commit, a.file, a.line, a.function, a.is_backward)
    + row_number() OVER (
      PARTITION BY a.is_line, a.git_commit, a.file, a.line, a.function, a.is_backward
      ORDER BY a.bytes, a.run) AS place
  FROM run_amounts a
  JOIN commits c ON c.git_commit = a.git_commit
), medians AS (
  SELECT is_line, git_commit, file, line, function, is_backward, bytes
  FROM placed_amounts
  WHERE 2 * place IN (runs, runs + 1)
), changes AS (
  SELECT g.git_commit, m.is_line, m.file, m.line, m.function, m.is_backward, m.bytes
  FROM regressed g
  JOIN medians m ON m.git_commit = g.git_commit
  UNION ALL
  SELECT g.git_commit, m.is_line, m.file, m.line, m.function, m.is_backward, -m.bytes
  FROM regressed g
  JOIN medians m ON m.git_commit = g.before_commit
), amounts AS (
  SELECT git_commit, is_line, file, line, function, is_backward, sum(bytes) AS grown
  FROM changes
  GROUP BY git_commit, is_line, file, line, function, is_backward
), functions AS (
  -- The row of a function has its growth; engines differ in joins of keys that can be null.
  SELECT git_commit, is_line, file, line, function, is_backward, grown,
    max(CASE WHEN is_line = 0 THEN grown END) OVER (
      PARTITION BY git_commit, file, function, is_backward) AS function_grown
  FROM amounts
), largest AS (
  SELECT git_commit, file, line, function, function_grown,
    row_number() OVER (
      PARTITION BY git_commit
      ORDER BY function_grown DESC NULLS LAST, is_line DESC NULLS LAST, grown DESC NULLS LAST,
        file NULLS LAST, line NULLS LAST, function NULLS LAST, is_backward) AS place
  FROM functions
  WHERE function_grown > 0
)
SELECT g.git_commit, g.before_commit, g.started_unix_ns AS first_started_unix_ns, g.runs,
  g.before_bytes, g.bytes, l.file, l.line, l.function,
  CAST(l.function_grown AS BIGINT) AS function_grown_bytes
FROM regressed g
LEFT JOIN largest l ON l.git_commit = g.git_commit AND l.place = 1
ORDER BY first_started_unix_ns NULLS LAST, g.git_commit
