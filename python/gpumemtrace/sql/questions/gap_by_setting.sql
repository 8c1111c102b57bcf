-- Why is reserved memory unused, with each allocator setting?
--
-- The gap is reserved memory that the program did not request, at its largest on each GPU. The
-- causes are those of docs/analyses/index.md.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
-- Columns:
--   allocator_conf VARCHAR: PYTORCH_ALLOC_CONF of the environment.
--   cause VARCHAR: The cause of a part of the gap.
--   gpus BIGINT (number): GPUs with this setting.
--   bytes BIGINT (bytes): Sum over these GPUs.
--   most_bytes BIGINT (bytes): Largest amount on one GPU.
--   share DOUBLE (of all causes): Share of the gaps with this setting.
WITH moments AS (
  SELECT s.run, s.rank, s.device, r.allocator_conf, s.start_ns, s.max_bytes AS gap_bytes,
    row_number() OVER (
      PARTITION BY s.run, s.rank, s.device ORDER BY s.max_bytes DESC NULLS LAST, s.start_ns) AS place
  FROM series s
  JOIN runs r ON r.run = s.run AND r.rank = s.rank
  WHERE s.series = 'gap' AND s.max_bytes IS NOT NULL
    AND COALESCE(r.command_json, '') LIKE :command
), largest AS (
  SELECT run, rank, device, allocator_conf, start_ns, gap_bytes FROM moments WHERE place = 1
), settings AS (
  SELECT allocator_conf, count(*) AS gpus, CAST(sum(gap_bytes) AS BIGINT) AS gap_bytes
  FROM largest
  GROUP BY allocator_conf
), causes AS (
  SELECT l.allocator_conf, substr(s.series, 5) AS cause, s.max_bytes AS bytes
  FROM largest l
  JOIN series s ON s.run = l.run AND s.rank = l.rank AND s.device = l.device
    AND s.start_ns = l.start_ns
  WHERE s.series LIKE 'gap.%' AND s.max_bytes > 0
)
SELECT c.allocator_conf, c.cause, t.gpus, CAST(sum(c.bytes) AS BIGINT) AS bytes,
  max(c.bytes) AS most_bytes,
  CAST(sum(c.bytes) AS DOUBLE) / NULLIF(CAST(t.gap_bytes AS DOUBLE), 0) AS share
FROM causes c
JOIN settings t ON COALESCE(t.allocator_conf, '') = COALESCE(c.allocator_conf, '')
  AND (t.allocator_conf IS NULL) = (c.allocator_conf IS NULL)
GROUP BY c.allocator_conf, c.cause, t.gpus, t.gap_bytes
ORDER BY c.allocator_conf NULLS FIRST, bytes DESC NULLS LAST, c.cause
