-- Which lines allocate memory that no run ever frees?
--
-- A block counts as never freed if it is live when the last step begins: Python frees most
-- blocks when it exits. Only whole, complete traces with steps, of processes that exited
-- normally, count; an unknown exit code is no failure. Parameters of the model appear here too,
-- unless the program frees them. Reads allocations.
-- A line that moved is one line: runs are matched by its text within its function, where the text
-- is known. Its number is the one of the newest run.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
--   layer VARCHAR = 'torch': The allocator: torch, driver, host or managed.
--   max_rows BIGINT = 50: Most rows to return.
--   newest_runs BIGINT = 20: Number of newest runs that count.
-- Columns:
--   file VARCHAR: File of the line, or the library.
--   line BIGINT (number): The line.
--   function VARCHAR: Its function.
--   is_backward BOOLEAN: True for memory that the backward pass of the line allocated.
--   runs BIGINT (number): Runs with blocks of this line that are never freed.
--   blocks BIGINT (number): These blocks in all runs.
--   bytes BIGINT (bytes): Their bytes.
--   most_bytes BIGINT (bytes): Largest amount on one GPU.
WITH whole AS (
  SELECT run, rank, started_unix_ns, steps
  FROM runs
  WHERE steps > 0 AND is_whole AND is_complete AND ending = 'exit'
    AND (exit_code = 0 OR exit_code IS NULL) AND COALESCE(command_json, '') LIKE :command
), newest AS (
  SELECT run FROM (
    SELECT run, row_number() OVER (ORDER BY started_unix_ns DESC NULLS LAST, run) AS place
    FROM (SELECT run, min(started_unix_ns) AS started_unix_ns FROM whole GROUP BY run) AS starts
  ) AS placed
  WHERE place <= :newest_runs
), gpu_sites AS (
  -- A block that is neither live nor freed is lost: it was freed, but its end is unknown.
  SELECT a.run, a.rank, a.device, a.site,
    count(CASE WHEN a.state = 'live' OR a.end_step >= w.steps THEN 1 END) AS blocks,
    CAST(sum(CASE WHEN a.state = 'live' OR a.end_step >= w.steps THEN a.size_bytes ELSE 0 END)
      AS BIGINT) AS bytes,
    count(CASE WHEN a.state = 'lost' OR a.end_step < w.steps THEN 1 END) AS freed
  FROM allocations a
  JOIN whole w ON w.run = a.run AND w.rank = a.rank
  JOIN newest n ON n.run = a.run
  WHERE a.layer = :layer AND a.start_step < w.steps AND a.site IS NOT NULL
  GROUP BY a.run, a.rank, a.device, a.site
), lines AS (
  SELECT DISTINCT run, rank, site, COALESCE(file, module) AS file,
    COALESCE(source_id, CAST(line AS VARCHAR(20))) AS line_key, line, function, is_backward
  FROM sites
  WHERE layer = :layer AND site IS NOT NULL
), gpu_lines AS (
  SELECT g.run, g.rank, g.device, w.started_unix_ns, l.file, l.line_key, max(l.line) AS line,
    l.function, l.is_backward, sum(g.blocks) AS blocks, CAST(sum(g.bytes) AS BIGINT) AS bytes,
    sum(g.freed) AS freed
  FROM gpu_sites g
  JOIN lines l ON l.run = g.run AND l.rank = g.rank AND l.site = g.site
  JOIN whole w ON w.run = g.run AND w.rank = g.rank
  GROUP BY g.run, g.rank, g.device, w.started_unix_ns, l.file, l.line_key, l.function, l.is_backward
), placed AS (
  SELECT run, file, line_key, line, function, is_backward, blocks, bytes, freed,
    row_number() OVER (
      PARTITION BY file, line_key, function, is_backward
      ORDER BY started_unix_ns DESC NULLS LAST, run DESC NULLS LAST, rank, device) AS place
  FROM gpu_lines
)
SELECT file, max(CASE WHEN place = 1 THEN line END) AS line, function, is_backward, count(DISTINCT CASE WHEN blocks > 0 THEN run END) AS runs,
  CAST(sum(blocks) AS BIGINT) AS blocks, CAST(sum(bytes) AS BIGINT) AS bytes,
  max(bytes) AS most_bytes
FROM placed
GROUP BY file, line_key, function, is_backward
HAVING sum(freed) = 0 AND sum(blocks) > 0
ORDER BY bytes DESC NULLS LAST, file NULLS LAST, line NULLS LAST, function NULLS LAST, is_backward
LIMIT :max_rows
