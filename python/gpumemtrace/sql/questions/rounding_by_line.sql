-- What does rounding of requests cost, by line?
--
-- Rounding is the size of a block minus the bytes that the program requested, at the peak of
-- reserved memory of each GPU. Blocks with an unknown request are left out. Reads allocations.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
--   max_rows BIGINT = 50: Most rows to return.
--   newest_runs BIGINT = 20: Number of newest runs that count.
-- Columns:
--   file VARCHAR: File of the line, or the library.
--   line BIGINT (number): The line.
--   function VARCHAR: Its function.
--   is_backward BOOLEAN: True for memory that the backward pass of the line allocated.
--   gpus BIGINT (number): GPUs with blocks of this line then.
--   blocks BIGINT (number): Blocks on all of them.
--   requested_bytes BIGINT (bytes): Bytes that the program requested.
--   rounding_bytes BIGINT (bytes): Bytes added by rounding.
--   most_rounding_bytes BIGINT (bytes): Largest amount on one GPU.
WITH newest AS (
  SELECT run FROM (
    SELECT run, row_number() OVER (ORDER BY started_unix_ns DESC NULLS LAST, run) AS place
    FROM (
      SELECT run, min(started_unix_ns) AS started_unix_ns
      FROM runs
      WHERE COALESCE(command_json, '') LIKE :command
      GROUP BY run
    ) AS starts
  ) AS placed
  WHERE place <= :newest_runs
), moments AS (
  SELECT DISTINCT s.run, s.rank, s.device, s.seq
  FROM segments s
  JOIN newest n ON n.run = s.run
  WHERE s.moment = 'peak_reserved' AND s.seq IS NOT NULL
), gpu_sites AS (
  SELECT a.run, a.rank, a.device, a.site, count(*) AS blocks,
    CAST(sum(a.requested_bytes) AS BIGINT) AS requested_bytes,
    CAST(sum(a.size_bytes - a.requested_bytes) AS BIGINT) AS rounding_bytes
  FROM allocations a
  JOIN moments m ON m.run = a.run AND m.rank = a.rank AND m.device = a.device
  WHERE a.layer = 'torch' AND a.requested_bytes IS NOT NULL AND a.start_seq <= m.seq
    AND (a.end_seq > m.seq OR a.state = 'live')
  GROUP BY a.run, a.rank, a.device, a.site
), lines AS (
  SELECT DISTINCT run, rank, site, COALESCE(file, module) AS file, line, function, is_backward
  FROM sites
  WHERE site IS NOT NULL
), gpu_lines AS (
  SELECT l.file, l.line, l.function, COALESCE(l.is_backward, false) AS is_backward,
    sum(g.blocks) AS blocks, sum(g.requested_bytes) AS requested_bytes,
    sum(g.rounding_bytes) AS rounding_bytes
  FROM gpu_sites g
  LEFT JOIN lines l ON l.run = g.run AND l.rank = g.rank AND l.site = g.site
  GROUP BY g.run, g.rank, g.device, l.file, l.line, l.function, COALESCE(l.is_backward, false)
)
SELECT file, line, function, is_backward, count(*) AS gpus, CAST(sum(blocks) AS BIGINT) AS blocks,
  CAST(sum(requested_bytes) AS BIGINT) AS requested_bytes,
  CAST(sum(rounding_bytes) AS BIGINT) AS rounding_bytes,
  CAST(max(rounding_bytes) AS BIGINT) AS most_rounding_bytes
FROM gpu_lines
GROUP BY file, line, function, is_backward
ORDER BY rounding_bytes DESC NULLS LAST, file NULLS LAST, line NULLS LAST, function NULLS LAST, is_backward
LIMIT :max_rows
