-- How much memory is left on each kind of GPU?
--
-- A run counts with its largest GPU.
--
-- Parameters:
--   full_share DOUBLE = 0.9: A run that used more than this share of the card is counted as full.
-- Columns:
--   card VARCHAR: Name of the GPU.
--   card_bytes BIGINT (bytes): Memory of the GPU.
--   runs BIGINT (number): Runs with a known peak.
--   most_bytes BIGINT (bytes): Largest peak of the driver's memory.
--   least_free_bytes BIGINT (bytes): What the largest run left free.
--   full_runs BIGINT (number): Runs that used more than full_share.
--   runs_with_ooms BIGINT (number): Runs with an out-of-memory error.
WITH peaks AS (
  SELECT run, card, card_bytes, max(peak_device_bytes) AS bytes, max(ooms) AS ooms
  FROM runs
  WHERE card IS NOT NULL AND peak_device_bytes IS NOT NULL
  GROUP BY run, card, card_bytes
)
SELECT card, card_bytes, count(*) AS runs, max(bytes) AS most_bytes,
  card_bytes - max(bytes) AS least_free_bytes,
  CASE WHEN card_bytes IS NOT NULL THEN
    count(CASE WHEN CAST(bytes AS DOUBLE) > :full_share * CAST(card_bytes AS DOUBLE) THEN 1 END)
  END AS full_runs,
  count(CASE WHEN ooms > 0 THEN 1 END) AS runs_with_ooms
FROM peaks
GROUP BY card, card_bytes
ORDER BY least_free_bytes NULLS LAST, card, card_bytes NULLS LAST
