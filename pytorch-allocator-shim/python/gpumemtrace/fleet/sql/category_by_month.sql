-- What filled GPUs at their peaks, by month?
--
-- Months are those of the starts of runs, in UTC. Runs without a known start are left out.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
-- Columns:
--   month VARCHAR: The month, as 2026-11.
--   category VARCHAR: The purpose of the memory: parameters, gradients, activations...
--   gpus BIGINT (number): GPUs with a peak in this month.
--   bytes BIGINT (bytes): Sum over the peaks of these GPUs.
--   most_bytes BIGINT (bytes): Largest amount on one GPU.
--   share DOUBLE (of all categories): Share of the bytes of the month.
WITH amounts AS (
  SELECT substr(c.run, 1, 4) || '-' || substr(c.run, 5, 2) AS month, c.category, c.run, c.rank,
    c.device, CAST(sum(c.bytes) AS BIGINT) AS bytes
  FROM categories c
  JOIN runs r ON r.run = c.run AND r.rank = c.rank
  WHERE c.run LIKE '20______T______Z-%' AND COALESCE(r.command_json, '') LIKE :command
  GROUP BY substr(c.run, 1, 4) || '-' || substr(c.run, 5, 2), c.category, c.run, c.rank, c.device
), gpus AS (
  SELECT month, count(*) AS gpus, CAST(sum(bytes) AS BIGINT) AS bytes
  FROM (
    SELECT month, run, rank, device, sum(bytes) AS bytes
    FROM amounts GROUP BY month, run, rank, device
  ) AS by_gpu
  GROUP BY month
)
SELECT a.month, a.category, g.gpus, CAST(sum(a.bytes) AS BIGINT) AS bytes,
  max(a.bytes) AS most_bytes,
  CAST(sum(a.bytes) AS DOUBLE) / NULLIF(CAST(g.bytes AS DOUBLE), 0) AS share
FROM amounts a
JOIN gpus g ON g.month = a.month
GROUP BY a.month, a.category, g.gpus, g.bytes
ORDER BY a.month, bytes DESC NULLS LAST, a.category
