-- How large are peaks with each version of PyTorch and each allocator setting?
--
-- A run counts with its largest GPU. The median of an even number of runs is the lower one.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
-- Columns:
--   torch VARCHAR: Version of PyTorch.
--   allocator_conf VARCHAR: PYTORCH_ALLOC_CONF of the environment.
--   runs BIGINT (number): Runs with a known peak.
--   median_live_bytes BIGINT (bytes): Median of the peaks of allocated memory.
--   most_live_bytes BIGINT (bytes): Largest peak of allocated memory.
--   median_reserved_bytes BIGINT (bytes): Median of the peaks of reserved memory.
--   most_reserved_bytes BIGINT (bytes): Largest peak of reserved memory.
WITH peaks AS (
  SELECT run, torch, allocator_conf, max(peak_live_bytes) AS live,
    max(peak_reserved_bytes) AS reserved
  FROM runs
  WHERE COALESCE(command_json, '') LIKE :command
    AND peak_live_bytes IS NOT NULL AND peak_reserved_bytes IS NOT NULL
  GROUP BY run, torch, allocator_conf
), placed AS (
  SELECT torch, allocator_conf, live, reserved,
    row_number() OVER (PARTITION BY torch, allocator_conf ORDER BY live, run) AS live_place,
    row_number() OVER (PARTITION BY torch, allocator_conf ORDER BY reserved, run) AS reserved_place,
    count(*) OVER (PARTITION BY torch, allocator_conf) AS runs
  FROM peaks
)
SELECT torch, allocator_conf, max(runs) AS runs,
  max(CASE WHEN 2 * live_place IN (runs, runs + 1) THEN live END) AS median_live_bytes,
  max(live) AS most_live_bytes,
  max(CASE WHEN 2 * reserved_place IN (runs, runs + 1) THEN reserved END) AS median_reserved_bytes,
  max(reserved) AS most_reserved_bytes
FROM placed
GROUP BY torch, allocator_conf
ORDER BY torch NULLS LAST, allocator_conf NULLS FIRST
