-- How large was the peak of each run?
--
-- The newest runs come first. Each peak is the largest over the GPUs of the run.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
--   max_rows BIGINT = 1000: Most rows to return.
-- Columns:
--   run VARCHAR: The run.
--   started_unix_ns BIGINT (nanoseconds since 1970): Start of the first rank.
--   git_commit VARCHAR: Commit of the program's checkout.
--   torch VARCHAR: Version of PyTorch.
--   card VARCHAR: Name of the GPU.
--   ranks BIGINT (number): Ranks in the archive.
--   steps BIGINT (number): Most steps of a rank.
--   peak_live_bytes BIGINT (bytes): Peak of allocated memory.
--   peak_reserved_bytes BIGINT (bytes): Peak of reserved memory.
--   peak_device_bytes BIGINT (bytes): Peak of the driver's memory.
SELECT run, min(started_unix_ns) AS started_unix_ns, min(git_commit) AS git_commit,
  min(torch) AS torch, min(card) AS card,
  count(DISTINCT COALESCE(reported_rank, rank)) AS ranks, max(steps) AS steps,
  max(peak_live_bytes) AS peak_live_bytes, max(peak_reserved_bytes) AS peak_reserved_bytes,
  max(peak_device_bytes) AS peak_device_bytes
FROM runs
WHERE COALESCE(command_json, '') LIKE :command
GROUP BY run
ORDER BY started_unix_ns DESC NULLS LAST, run
LIMIT :max_rows
