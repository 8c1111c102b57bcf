-- Which lines grow slowly but steadily?
--
-- These are lines with blocks that are live when the last step begins and come from every
-- quarter of the steps. Later frees do not count: Python frees most blocks when it exits. The
-- slowest come first: reports find the fast ones. Reads allocations.
-- A line that moved is one line: runs are matched by its text within its function, where the text
-- is known. Its number is the one of the newest run.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
--   min_steps BIGINT = 20: Shorter runs are left out.
--   min_blocks BIGINT = 8: Lines with fewer blocks in a process are left out.
--   max_rows BIGINT = 50: Most rows to return.
--   newest_runs BIGINT = 20: Number of newest runs that count.
-- Columns:
--   file VARCHAR: File of the line, or the library.
--   line BIGINT (number): The line.
--   function VARCHAR: Its function.
--   is_backward BOOLEAN: True for memory that the backward pass of the line allocated.
--   runs BIGINT (number): Runs in which it grows.
--   ranks BIGINT (number): Processes in which it grows.
--   reported_ranks BIGINT (number): Processes whose reports call it a leak.
--   blocks BIGINT (number): Most blocks in one process.
--   bytes_per_step DOUBLE (bytes per step): Mean growth over all steps before the last.
WITH newest AS (
  SELECT run FROM (
    SELECT run, row_number() OVER (ORDER BY started_unix_ns DESC NULLS LAST, run) AS place
    FROM (
      SELECT run, min(started_unix_ns) AS started_unix_ns
      FROM runs
      WHERE COALESCE(command_json, '') LIKE :command
      GROUP BY run
    ) AS starts
  ) AS placed
  WHERE place <= :newest_runs
), long_runs AS (
  SELECT r.run, r.rank, r.steps, r.started_unix_ns
  FROM runs r
  JOIN newest n ON n.run = r.run
  WHERE r.steps >= :min_steps AND r.is_whole
), survivors AS (
  SELECT a.run, a.rank, a.site, r.steps, count(*) AS blocks,
    CAST(sum(a.size_bytes) AS BIGINT) AS bytes,
    count(CASE WHEN 4 * a.start_step <= r.steps THEN 1 END) AS first_quarter,
    count(CASE WHEN 4 * a.start_step > r.steps AND 2 * a.start_step <= r.steps THEN 1 END)
      AS second_quarter,
    count(CASE WHEN 2 * a.start_step > r.steps AND 4 * a.start_step <= 3 * r.steps THEN 1 END)
      AS third_quarter,
    count(CASE WHEN 4 * a.start_step > 3 * r.steps THEN 1 END) AS fourth_quarter
  FROM allocations a
  JOIN long_runs r ON r.run = a.run AND r.rank = a.rank
  WHERE a.layer = 'torch' AND a.start_step > 0 AND a.start_step < r.steps
    AND (a.state = 'live' OR a.end_step >= r.steps) AND a.site IS NOT NULL
  GROUP BY a.run, a.rank, a.site, r.steps
), steady AS (
  SELECT run, rank, site, steps, blocks, bytes FROM survivors
  WHERE first_quarter > 0 AND second_quarter > 0 AND third_quarter > 0 AND fourth_quarter > 0
    AND blocks >= :min_blocks
), lines AS (
  SELECT DISTINCT run, rank, site, site_id, COALESCE(file, module) AS file,
    COALESCE(source_id, CAST(line AS VARCHAR(20))) AS line_key, line, function, is_backward
  FROM sites
), leaks AS (
  SELECT DISTINCT run, rank, site_id FROM findings WHERE kind = 'leak'
), placed AS (
  SELECT s.run, l.file, l.line_key, l.line, l.function, l.is_backward, s.blocks, s.bytes, s.steps,
    f.site_id AS reported,
    row_number() OVER (
      PARTITION BY l.file, l.line_key, l.function, l.is_backward
      ORDER BY r.started_unix_ns DESC NULLS LAST, s.run DESC NULLS LAST, s.rank, s.site) AS place
  FROM steady s
  JOIN lines l ON l.run = s.run AND l.rank = s.rank AND l.site = s.site
  JOIN long_runs r ON r.run = s.run AND r.rank = s.rank
  LEFT JOIN leaks f ON f.run = s.run AND f.rank = s.rank AND f.site_id = l.site_id
)
SELECT file, max(CASE WHEN place = 1 THEN line END) AS line, function, is_backward,
  count(DISTINCT run) AS runs, count(*) AS ranks, count(reported) AS reported_ranks,
  max(blocks) AS blocks,
  CAST(sum(bytes) AS DOUBLE) / CAST(sum(steps - 1) AS DOUBLE) AS bytes_per_step
FROM placed
GROUP BY file, line_key, function, is_backward
ORDER BY bytes_per_step NULLS LAST, file NULLS LAST, line NULLS LAST, function NULLS LAST, is_backward
LIMIT :max_rows
