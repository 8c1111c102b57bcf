-- Which lines hold most memory at the peaks of all runs?
--
-- The peaks are those of allocated memory, one for each GPU of each run.
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
--   runs BIGINT (number): Runs with this line at a peak.
--   gpus BIGINT (number): GPUs with this line at their peak.
--   bytes BIGINT (bytes): Sum over the peaks of these GPUs.
--   most_bytes BIGINT (bytes): Largest amount on one GPU.
--   share DOUBLE (of all peaks): Share of the bytes of all lines.
WITH gpu_lines AS (
  SELECT s.run, s.rank, s.device, r.started_unix_ns, COALESCE(s.file, s.module) AS file,
    COALESCE(s.source_id, CAST(s.line AS VARCHAR(20))) AS line_key, max(s.line) AS line, s.function,
    s.is_backward, CAST(sum(s.peak_bytes) AS BIGINT) AS bytes
  FROM sites s
  JOIN runs r ON r.run = s.run AND r.rank = s.rank
  WHERE s.layer = :layer AND s.peak_bytes > 0 AND COALESCE(r.command_json, '') LIKE :command
  GROUP BY s.run, s.rank, s.device, r.started_unix_ns, COALESCE(s.file, s.module),
    COALESCE(s.source_id, CAST(s.line AS VARCHAR(20))), s.function, s.is_backward
), placed AS (
  SELECT run, file, line_key, line, function, is_backward, bytes,
    row_number() OVER (
      PARTITION BY file, line_key, function, is_backward
      ORDER BY started_unix_ns DESC NULLS LAST, run DESC NULLS LAST, rank, device) AS place
  FROM gpu_lines
), lines AS (
  SELECT file, max(CASE WHEN place = 1 THEN line END) AS line, function, is_backward, count(DISTINCT run) AS runs, count(*) AS gpus,
    CAST(sum(bytes) AS BIGINT) AS bytes, max(bytes) AS most_bytes
  FROM placed
  GROUP BY file, line_key, function, is_backward
)
SELECT file, line, function, is_backward, runs, gpus, bytes, most_bytes,
  CAST(bytes AS DOUBLE) / CAST(sum(bytes) OVER () AS DOUBLE) AS share
FROM lines
ORDER BY bytes DESC NULLS LAST, file NULLS LAST, line NULLS LAST, function NULLS LAST, is_backward
LIMIT :max_rows
