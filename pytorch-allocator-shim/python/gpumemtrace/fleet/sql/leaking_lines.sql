-- Which lines leak, in how many runs, and since which commit?
--
-- The leaks are those that reports found. Bytes are live at the end of the run.
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
--   most_bytes BIGINT (bytes): Largest amount in one process.
--   bytes_per_step DOUBLE (bytes per step): Mean growth. Null without steps.
--   first_commit VARCHAR: Commit of the first run in which it leaks.
--   first_run VARCHAR: The first run in which it leaks.
--   last_run VARCHAR: The last run in which it leaks.
WITH leaks AS (
  SELECT DISTINCT run, rank, site_id FROM findings WHERE kind = 'leak' AND site_id IS NOT NULL
), rank_lines AS (
  SELECT r.run, r.rank, r.started_unix_ns, r.git_commit, r.steps,
    COALESCE(s.file, s.module) AS file, s.line, s.function, s.is_backward,
    CAST(sum(s.end_bytes) AS BIGINT) AS bytes
  FROM leaks l
  JOIN sites s ON s.run = l.run AND s.rank = l.rank AND s.site_id = l.site_id
  JOIN runs r ON r.run = l.run AND r.rank = l.rank
  WHERE s.layer = :layer AND COALESCE(r.command_json, '') LIKE :command
  GROUP BY r.run, r.rank, r.started_unix_ns, r.git_commit, r.steps, COALESCE(s.file, s.module),
    s.line, s.function, s.is_backward
), placed AS (
  SELECT run, git_commit, steps, file, line, function, is_backward, bytes,
    row_number() OVER (
      PARTITION BY file, line, function, is_backward
      ORDER BY started_unix_ns NULLS LAST, run, rank) AS place,
    row_number() OVER (
      PARTITION BY file, line, function, is_backward
      ORDER BY started_unix_ns DESC NULLS LAST, run, rank) AS place_from_last
  FROM rank_lines
)
SELECT file, line, function, is_backward, count(DISTINCT run) AS runs, count(*) AS ranks,
  max(bytes) AS most_bytes,
  CAST(sum(CASE WHEN steps > 0 THEN bytes END) AS DOUBLE)
    / CAST(sum(CASE WHEN steps > 0 THEN steps END) AS DOUBLE) AS bytes_per_step,
  max(CASE WHEN place = 1 THEN git_commit END) AS first_commit,
  max(CASE WHEN place = 1 THEN run END) AS first_run,
  max(CASE WHEN place_from_last = 1 THEN run END) AS last_run
FROM placed
GROUP BY file, line, function, is_backward
ORDER BY ranks DESC NULLS LAST, most_bytes DESC NULLS LAST, file NULLS LAST, line NULLS LAST, function NULLS LAST,
  is_backward
