-- Which lines leak, in how many runs, and since which commit?
--
-- The leaks and their bytes are those that reports found: of blocks that are live when the last
-- step begins, since Python frees most blocks when it exits. Reserved memory that grows counts
-- as torch.
-- A line that moved is one line: runs are matched by its text within its function, where the text
-- is known. Its number is the one of the newest run.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
--   layer VARCHAR = 'torch': The allocator: torch, driver, host or managed.
-- Columns:
--   file VARCHAR: File of the line, or the library.
--   line BIGINT (number): The line.
--   function VARCHAR: Its function.
--   is_backward BOOLEAN: True for memory that the backward pass of the line allocated.
--   runs BIGINT (number): Runs in which it leaks.
--   ranks BIGINT (number): Processes in which it leaks.
--   most_bytes BIGINT (bytes): Largest amount in one process. Null if it is unknown.
--   bytes_per_step DOUBLE (bytes per step): Mean growth. Null without steps.
--   first_commit VARCHAR: Commit of the first run in which it leaks.
--   first_run VARCHAR: The first run in which it leaks.
--   last_run VARCHAR: The last run in which it leaks.
WITH leaks AS (
  -- Keys are sorted: these are before those of the site, which may have any text.
  SELECT run, rank, site_id,
    CASE split_part(split_part(evidence_json, '"kind":"', 2), '"', 1)
      WHEN 'tensors' THEN 'torch' WHEN 'reserved' THEN 'torch' WHEN 'device' THEN 'driver'
      WHEN 'pinned_host' THEN 'host' END AS layer,
    CAST(NULLIF(split_part(split_part(evidence_json, '"bytes":', 2), ',', 1), '') AS BIGINT)
      AS bytes,
    -- Sums of integers are the same in any order.
    CAST(floor(CAST(NULLIF(NULLIF(
      split_part(split_part(evidence_json, '"bytes_per_step":', 2), ',', 1), ''), 'null')
      AS DOUBLE)) AS BIGINT) AS rate
  FROM findings
  WHERE kind = 'leak' AND site_id IS NOT NULL
), lines AS (
  SELECT DISTINCT run, rank, site_id, COALESCE(file, module) AS file,
    COALESCE(source_id, CAST(line AS VARCHAR(20))) AS line_key, line, function, is_backward
  FROM sites
  WHERE layer = :layer
), rank_lines AS (
  SELECT r.run, r.rank, r.started_unix_ns, r.git_commit, s.file, s.line_key, max(s.line) AS line,
    s.function, s.is_backward,
    CASE WHEN count(l.bytes) = count(*) THEN CAST(sum(l.bytes) AS BIGINT) END AS bytes,
    CASE WHEN count(l.rate) = count(*) THEN CAST(sum(l.rate) AS BIGINT) END AS rate
  FROM leaks l
  JOIN lines s ON s.run = l.run AND s.rank = l.rank AND s.site_id = l.site_id
  JOIN runs r ON r.run = l.run AND r.rank = l.rank
  WHERE COALESCE(l.layer, :layer) = :layer AND COALESCE(r.command_json, '') LIKE :command
  GROUP BY r.run, r.rank, r.started_unix_ns, r.git_commit, s.file, s.line_key, s.function,
    s.is_backward
), placed AS (
  SELECT run, git_commit, file, line_key, line, function, is_backward, bytes, rate,
    row_number() OVER (
      PARTITION BY file, line_key, function, is_backward
      ORDER BY started_unix_ns NULLS LAST, run, rank) AS place,
    row_number() OVER (
      PARTITION BY file, line_key, function, is_backward
      ORDER BY started_unix_ns DESC NULLS LAST, run, rank) AS place_from_last
  FROM rank_lines
)
SELECT file, max(CASE WHEN place_from_last = 1 THEN line END) AS line, function, is_backward,
  count(DISTINCT run) AS runs, count(*) AS ranks,
  max(bytes) AS most_bytes,
  CAST(sum(rate) AS DOUBLE) / NULLIF(CAST(count(rate) AS DOUBLE), 0) AS bytes_per_step,
  max(CASE WHEN place = 1 THEN git_commit END) AS first_commit,
  max(CASE WHEN place = 1 THEN run END) AS first_run,
  max(CASE WHEN place_from_last = 1 THEN run END) AS last_run
FROM placed
GROUP BY file, line_key, function, is_backward
ORDER BY ranks DESC NULLS LAST, most_bytes DESC NULLS LAST, file NULLS LAST, line NULLS LAST, function NULLS LAST,
  is_backward
