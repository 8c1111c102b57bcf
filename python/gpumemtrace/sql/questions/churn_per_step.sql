-- Which lines allocate most in each step?
--
-- The means are over the GPUs and steps of all whole runs that use the line.
-- A line that moved is one line: runs are matched by its text within its function, where the text
-- is known. Its number is the one of the newest run.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
--   layer VARCHAR = 'torch': The allocator: torch, driver, host or managed.
--   max_rows BIGINT = 50: Most rows to return.
-- Columns:
--   file VARCHAR: File of the line, or the library.
--   line BIGINT (number): The line.
--   function VARCHAR: Its function.
--   is_backward BOOLEAN: True for memory that the backward pass of the line allocated.
--   runs BIGINT (number): Runs with this line.
--   blocks_per_step DOUBLE (number per step): Mean number of blocks.
--   bytes_per_step DOUBLE (bytes per step): Mean bytes.
WITH gpu_lines AS (
  SELECT s.run, s.rank, s.device, r.steps, r.started_unix_ns, COALESCE(s.file, s.module) AS file,
    COALESCE(s.source_id, CAST(s.line AS VARCHAR(20))) AS line_key, max(s.line) AS line, s.function,
    s.is_backward, sum(s.allocations) AS blocks, sum(s.allocated_bytes) AS bytes
  FROM sites s
  JOIN runs r ON r.run = s.run AND r.rank = s.rank
  WHERE s.layer = :layer AND r.steps > 0 AND r.is_whole
    AND COALESCE(r.command_json, '') LIKE :command
  GROUP BY s.run, s.rank, s.device, r.steps, r.started_unix_ns, COALESCE(s.file, s.module),
    COALESCE(s.source_id, CAST(s.line AS VARCHAR(20))), s.function, s.is_backward
), placed AS (
  SELECT run, steps, file, line_key, line, function, is_backward, blocks, bytes,
    row_number() OVER (
      PARTITION BY file, line_key, function, is_backward
      ORDER BY started_unix_ns DESC NULLS LAST, run DESC NULLS LAST, rank, device) AS place
  FROM gpu_lines
)
SELECT file, max(CASE WHEN place = 1 THEN line END) AS line, function, is_backward, count(DISTINCT run) AS runs,
  CAST(sum(blocks) AS DOUBLE) / CAST(sum(steps) AS DOUBLE) AS blocks_per_step,
  CAST(sum(bytes) AS DOUBLE) / CAST(sum(steps) AS DOUBLE) AS bytes_per_step
FROM placed
GROUP BY file, line_key, function, is_backward
ORDER BY bytes_per_step DESC NULLS LAST, file NULLS LAST, line NULLS LAST, function NULLS LAST, is_backward
LIMIT :max_rows
