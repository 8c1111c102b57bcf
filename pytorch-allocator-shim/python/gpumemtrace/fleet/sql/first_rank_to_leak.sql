-- In which rank, step and line did the leak of each run begin?
--
-- The leaks are those that reports found. A leak begins in the first step whose blocks are live at
-- the end of the run. Of equal steps, the lowest rank is first. Reads allocations.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
--   max_rows BIGINT = 100: Most rows to return.
-- Columns:
--   run VARCHAR: The run.
--   git_commit VARCHAR: Commit of the program's checkout.
--   leaking_ranks BIGINT (number): Ranks that leak.
--   ranks BIGINT (number): Ranks in the lake.
--   first_rank BIGINT (number): The first of them.
--   first_step BIGINT (number): The step in which its leak began. 0 is before the first one.
--   file VARCHAR: File of the line that leaks, or the library.
--   line BIGINT (number): The line.
--   function VARCHAR: Its function.
--   blocks BIGINT (number): Blocks that this line leaked in this rank.
--   bytes BIGINT (bytes): Their bytes.
WITH leaks AS (
  SELECT DISTINCT f.run, f.rank, s.site, COALESCE(s.file, s.module) AS file, s.line, s.function
  FROM findings f
  JOIN sites s ON s.run = f.run AND s.rank = f.rank AND s.site_id = f.site_id
  JOIN runs r ON r.run = f.run AND r.rank = f.rank
  WHERE f.kind = 'leak' AND s.layer = 'torch' AND COALESCE(r.command_json, '') LIKE :command
), begun AS (
  SELECT l.run, l.rank, l.site, l.file, l.line, l.function, min(a.start_step) AS first_step,
    count(*) AS blocks, CAST(sum(a.size_bytes) AS BIGINT) AS bytes
  FROM leaks l
  JOIN allocations a ON a.run = l.run AND a.rank = l.rank AND a.site = l.site
  WHERE a.layer = 'torch' AND a.state = 'live' AND a.start_step IS NOT NULL
  GROUP BY l.run, l.rank, l.site, l.file, l.line, l.function
), placed AS (
  SELECT run, rank, file, line, function, first_step, blocks, bytes,
    row_number() OVER (PARTITION BY run ORDER BY first_step, rank, bytes DESC NULLS LAST, site) AS place
  FROM begun
), leaking AS (
  SELECT run, count(DISTINCT rank) AS leaking_ranks FROM begun GROUP BY run
), sizes AS (
  SELECT run, min(started_unix_ns) AS started_unix_ns, min(git_commit) AS git_commit,
    count(*) AS ranks
  FROM runs
  GROUP BY run
)
SELECT p.run, z.git_commit, l.leaking_ranks, z.ranks, p.rank AS first_rank, p.first_step, p.file,
  p.line, p.function, p.blocks, p.bytes
FROM placed p
JOIN leaking l ON l.run = p.run
JOIN sizes z ON z.run = p.run
WHERE p.place = 1
ORDER BY z.started_unix_ns DESC NULLS LAST, p.run
LIMIT :max_rows
