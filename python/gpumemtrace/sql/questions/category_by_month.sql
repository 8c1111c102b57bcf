-- What filled GPUs at their peaks, by month?
--
-- The month of a run is that of the start of its first rank, in UTC. Runs without a known start are
-- left out.
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
WITH starts AS (
  SELECT run, min(started_unix_ns) AS unix_ns FROM runs GROUP BY run
), days AS (
  -- Engines divide integers differently, except without a remainder. Days count from 0000-03-01: in
  -- years that begin in March, all 400 years are 146,097 days and leap days come last.
  SELECT run, 719468 + CAST((unix_ns - unix_ns % 86400000000000) / 86400000000000 AS BIGINT) AS day
  FROM starts
  WHERE unix_ns IS NOT NULL
), eras AS (
  SELECT run, CAST((day - day % 146097) / 146097 AS BIGINT) AS era, day % 146097 AS day FROM days
), corrected AS (
  SELECT run, era, day, day - CAST((day - day % 1460) / 1460 AS BIGINT)
    + CAST((day - day % 36524) / 36524 AS BIGINT)
    - CAST((day - day % 146096) / 146096 AS BIGINT) AS days_of_365
  FROM eras
), years AS (
  SELECT run, era, day, CAST((days_of_365 - days_of_365 % 365) / 365 AS BIGINT) AS year
  FROM corrected
), months AS (
  SELECT run, 400 * era + year AS year,
    5 * (day - 365 * year - CAST((year - year % 4) / 4 AS BIGINT)
      + CAST((year - year % 100) / 100 AS BIGINT)) + 2 AS fifths
  FROM years
), numbered AS (
  -- The number of the month from March: five months have 153 days.
  SELECT run, year, CAST((fifths - fifths % 153) / 153 AS BIGINT) AS month FROM months
), dates AS (
  SELECT run, CAST(year + CASE WHEN month < 10 THEN 0 ELSE 1 END AS VARCHAR(4)) || '-'
    || substr('030405060708091011120102', CAST(2 * month + 1 AS INT), 2) AS month
  FROM numbered
), amounts AS (
  SELECT d.month, c.category, c.run, c.rank, c.device, CAST(sum(c.bytes) AS BIGINT) AS bytes
  FROM categories c
  JOIN runs r ON r.run = c.run AND r.rank = c.rank
  JOIN dates d ON d.run = c.run
  WHERE COALESCE(r.command_json, '') LIKE :command
  GROUP BY d.month, c.category, c.run, c.rank, c.device
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
