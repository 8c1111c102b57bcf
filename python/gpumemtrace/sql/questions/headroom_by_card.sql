-- How much memory is left on each kind of GPU?
--
-- A run counts with its largest GPU: with the memory that the driver gave to the process, and
-- with what no driver call shows (context, code, rounding), about half a GiB. NVML measures the
-- latter for the process alone; where only the driver measured it, it includes other processes on
-- the GPU (unaccounted_source in runs). If it is unknown, because there was no sample or an older
-- version made the export, the run counts without it. Then least_free_bytes is an upper bound and
-- full_runs a lower bound, and is_upper_bound is true.
--
-- Parameters:
--   full_share DOUBLE = 0.9: A run that used more than this share of the card is counted as full.
-- Columns:
--   card VARCHAR: Name of the GPU.
--   card_bytes BIGINT (bytes): Memory of the GPU.
--   runs BIGINT (number): Runs with a known peak.
--   most_bytes BIGINT (bytes): Most memory in use.
--   least_free_bytes BIGINT (bytes): What the largest run left free.
--   full_runs BIGINT (number): Runs that used more than full_share.
--   unmeasured_runs BIGINT (number): Runs that count without what no driver call shows.
--   is_upper_bound BOOLEAN: True if there are such runs: less may be free.
--   runs_with_ooms BIGINT (number): Runs with an out-of-memory error.
WITH peaks AS (
  SELECT run, card, card_bytes, max(COALESCE(peak_used_bytes, peak_device_bytes)) AS bytes,
    max(CASE WHEN peak_used_bytes IS NULL THEN 1 ELSE 0 END) AS is_unmeasured, max(ooms) AS ooms
  FROM runs
  WHERE card IS NOT NULL AND peak_device_bytes IS NOT NULL
  GROUP BY run, card, card_bytes
)
SELECT card, card_bytes, count(*) AS runs, max(bytes) AS most_bytes,
  -- Contexts grow after the peak, so the sum may exceed the card.
  CASE WHEN max(bytes) > card_bytes THEN 0 ELSE card_bytes - max(bytes) END AS least_free_bytes,
  CASE WHEN card_bytes IS NOT NULL THEN
    count(CASE WHEN CAST(bytes AS DOUBLE) > :full_share * CAST(card_bytes AS DOUBLE) THEN 1 END)
  END AS full_runs,
  CAST(sum(is_unmeasured) AS BIGINT) AS unmeasured_runs, sum(is_unmeasured) > 0 AS is_upper_bound,
  count(CASE WHEN ooms > 0 THEN 1 END) AS runs_with_ooms
FROM peaks
GROUP BY card, card_bytes
ORDER BY least_free_bytes NULLS LAST, card, card_bytes NULLS LAST
