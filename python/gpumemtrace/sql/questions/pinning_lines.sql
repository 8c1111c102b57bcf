-- Which lines pin segments that are nearly free?
--
-- A segment with a live block cannot be returned to the driver. These are the lines of such blocks
-- at the peak of reserved memory of each GPU. A segment with blocks of several lines counts for
-- each of them, so the free bytes of lines do not sum up. A block that lies in several pieces of an
-- expandable segment counts for the first one. Reads allocations.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
--   max_share DOUBLE = 0.25: Segments of which a larger share is allocated are left out.
--   max_rows BIGINT = 50: Most rows to return.
--   newest_runs BIGINT = 20: Number of newest runs that count.
-- Columns:
--   file VARCHAR: File of the line, or the library.
--   line BIGINT (number): The line.
--   function VARCHAR: Its function.
--   is_backward BOOLEAN: True for memory that the backward pass of the line allocated.
--   runs BIGINT (number): Runs in which it pins segments.
--   segments BIGINT (number): Segments that it pins.
--   blocks BIGINT (number): Its blocks in them.
--   block_bytes BIGINT (bytes): Bytes of these blocks.
--   free_bytes BIGINT (bytes): Free bytes in these segments.
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
), sparse AS (
  SELECT s.run, s.rank, s.device, s.seq, s.address, s.address + s.size_bytes AS end_address,
    s.size_bytes - s.allocated_bytes AS free_bytes
  FROM segments s
  JOIN newest n ON n.run = s.run
  WHERE s.moment = 'peak_reserved' AND s.allocated_bytes > 0
    AND CAST(s.allocated_bytes AS DOUBLE) <= :max_share * CAST(s.size_bytes AS DOUBLE)
), moments AS (
  SELECT DISTINCT run, rank, device, seq FROM sparse
), live AS (
  -- Grouped, so that engines find the few live blocks first and compare only these with segments.
  SELECT a.run, a.rank, a.device, a.site, a.address, count(*) AS blocks,
    CAST(sum(a.size_bytes) AS BIGINT) AS block_bytes
  FROM allocations a
  JOIN moments m ON m.run = a.run AND m.rank = a.rank AND m.device = a.device
  WHERE a.layer = 'torch' AND a.start_seq <= m.seq AND (a.end_seq > m.seq OR a.state = 'live')
  GROUP BY a.run, a.rank, a.device, a.site, a.address
), pinned AS (
  SELECT p.run, p.rank, p.device, p.address, p.free_bytes, b.site,
    sum(b.blocks) AS blocks, sum(b.block_bytes) AS block_bytes
  FROM live b
  JOIN sparse p ON p.run = b.run AND p.rank = b.rank AND p.device = b.device
    AND b.address >= p.address AND b.address < p.end_address
  GROUP BY p.run, p.rank, p.device, p.address, p.free_bytes, b.site
), lines AS (
  SELECT DISTINCT run, rank, site, COALESCE(file, module) AS file, line, function, is_backward
  FROM sites
  WHERE site IS NOT NULL
), segment_lines AS (
  SELECT p.run, p.free_bytes, l.file, l.line, l.function,
    COALESCE(l.is_backward, false) AS is_backward, sum(p.blocks) AS blocks,
    sum(p.block_bytes) AS block_bytes
  FROM pinned p
  LEFT JOIN lines l ON l.run = p.run AND l.rank = p.rank AND l.site = p.site
  GROUP BY p.run, p.rank, p.device, p.address, p.free_bytes, l.file, l.line, l.function,
    COALESCE(l.is_backward, false)
)
SELECT file, line, function, is_backward, count(DISTINCT run) AS runs, count(*) AS segments,
  CAST(sum(blocks) AS BIGINT) AS blocks, CAST(sum(block_bytes) AS BIGINT) AS block_bytes,
  CAST(sum(free_bytes) AS BIGINT) AS free_bytes
FROM segment_lines
GROUP BY file, line, function, is_backward
ORDER BY free_bytes DESC NULLS LAST, file NULLS LAST, line NULLS LAST, function NULLS LAST, is_backward
LIMIT :max_rows
