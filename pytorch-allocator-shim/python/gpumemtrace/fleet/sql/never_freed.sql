-- Which lines allocate memory that no run ever frees?
--
-- Only whole, complete traces of processes that exited normally count; an unknown exit code is no
-- failure. Parameters of the model appear here too, unless the program frees them.
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
--   blocks BIGINT (number): Its blocks in all runs.
--   bytes BIGINT (bytes): Their bytes.
--   most_bytes BIGINT (bytes): Largest amount on one GPU.
WITH gpu_lines AS (
  SELECT s.run, s.rank, s.device, COALESCE(s.file, s.module) AS file, s.line, s.function,
    s.is_backward, sum(s.frees) AS frees, sum(s.end_blocks) AS blocks,
    CAST(sum(s.end_bytes) AS BIGINT) AS bytes
  FROM sites s
  JOIN runs r ON r.run = s.run AND r.rank = s.rank
  WHERE s.layer = :layer AND r.is_whole AND r.is_complete AND r.ending = 'exit'
    AND (r.exit_code = 0 OR r.exit_code IS NULL)
    AND COALESCE(r.command_json, '') LIKE :command
  GROUP BY s.run, s.rank, s.device, COALESCE(s.file, s.module), s.line, s.function, s.is_backward
)
SELECT file, line, function, is_backward, count(DISTINCT run) AS runs,
  CAST(sum(blocks) AS BIGINT) AS blocks, CAST(sum(bytes) AS BIGINT) AS bytes,
  max(bytes) AS most_bytes
FROM gpu_lines
GROUP BY file, line, function, is_backward
HAVING sum(frees) = 0 AND sum(blocks) > 0
ORDER BY bytes DESC NULLS LAST, file NULLS LAST, line NULLS LAST, function NULLS LAST, is_backward
LIMIT :max_rows
