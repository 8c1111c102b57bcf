-- Which lines use more memory at the peak after a change?
--
-- Compares two commits, by default the two with the newest first runs. Only runs with a known
-- peak count, of which all traces are whole and complete and all processes exited normally; an
-- unknown exit code is no failure. Without two commits with such runs, there are no rows. A
-- commit counts with the median of its runs (the lower one of an even number), of which those
-- without the function have 0, and a run with the GPU at whose peak the function holds most.
-- Lines are compared within their function, so that a moved line is not a new one: a row is a
-- function, and its line is the one that grew most.
--
-- Parameters:
--   before VARCHAR (commit) = '': The commit to compare with. If empty, the one before the other.
--   after VARCHAR (commit) = '': The commit to look at. If empty, the newest.
--   command VARCHAR = '%': LIKE pattern for the command line.
--   min_bytes BIGINT = 1: Smallest growth to report, in bytes.
-- Columns:
--   before_commit VARCHAR: The commit compared with.
--   after_commit VARCHAR: The commit looked at.
--   file VARCHAR: File of the line, or the library.
--   line BIGINT (number): The line.
--   function VARCHAR: The function.
--   is_backward BOOLEAN: True for memory that the backward pass of the line allocated.
--   before_bytes BIGINT (bytes): Memory of the function before.
--   after_bytes BIGINT (bytes): Memory of the function after.
--   grown_bytes BIGINT (bytes): The difference.
WITH comparable AS (
  SELECT run
  FROM runs
  GROUP BY run
  HAVING max(peak_live_bytes) IS NOT NULL
    AND min(CASE WHEN is_whole AND is_complete AND ending = 'exit'
      AND (exit_code = 0 OR exit_code IS NULL) THEN 1 ELSE 0 END) = 1
), commits AS (
  SELECT r.git_commit, min(r.started_unix_ns) AS started_unix_ns
  FROM runs r
  JOIN comparable c ON c.run = r.run
  WHERE r.git_commit IS NOT NULL AND COALESCE(r.command_json, '') LIKE :command
  GROUP BY r.git_commit
), placed AS (
  SELECT git_commit,
    row_number() OVER (ORDER BY started_unix_ns DESC NULLS LAST, git_commit DESC NULLS LAST) AS place
  FROM commits
), after_place AS (
  SELECT git_commit, place FROM placed
  WHERE git_commit = :after OR (:after = '' AND place = 1)
), before_place AS (
  SELECT p.git_commit FROM placed p CROSS JOIN after_place a
  WHERE p.git_commit = :before OR (:before = '' AND p.place = a.place + 1)
), sides AS (
  SELECT git_commit, 1 AS is_after FROM after_place
  UNION ALL
  SELECT git_commit, 0 FROM before_place
), side_runs AS (
  SELECT d.is_after, count(DISTINCT r.run) AS runs
  FROM runs r
  JOIN comparable c ON c.run = r.run
  JOIN sides d ON d.git_commit = r.git_commit
  WHERE COALESCE(r.command_json, '') LIKE :command
  GROUP BY d.is_after
), gpu_lines AS (
  SELECT d.is_after, s.run, s.rank, s.device, COALESCE(s.file, s.module) AS file, s.line,
    s.function, s.is_backward, CAST(sum(s.peak_bytes) AS BIGINT) AS bytes
  FROM sites s
  JOIN runs r ON r.run = s.run AND r.rank = s.rank
  JOIN comparable c ON c.run = r.run
  JOIN sides d ON d.git_commit = r.git_commit
  WHERE s.layer = 'torch' AND s.peak_bytes > 0
    AND COALESCE(r.command_json, '') LIKE :command
  GROUP BY d.is_after, s.run, s.rank, s.device, COALESCE(s.file, s.module), s.line, s.function,
    s.is_backward
), gpu_amounts AS (
  -- Of functions, and of their lines.
  SELECT 1 AS is_line, is_after, run, file, line, function, is_backward, bytes FROM gpu_lines
  UNION ALL
  SELECT 0, is_after, run, file, CAST(NULL AS BIGINT), function, is_backward,
    CAST(sum(bytes) AS BIGINT)
  FROM gpu_lines
  GROUP BY is_after, run, rank, device, file, function, is_backward
), run_amounts AS (
  SELECT is_line, is_after, run, file, line, function, is_backward, max(bytes) AS bytes
  FROM gpu_amounts
  GROUP BY is_line, is_after, run, file, line, function, is_backward
), placed_amounts AS (
  SELECT a.is_line, a.is_after, a.file, a.line, a.function, a.is_backward, a.bytes, r.runs,
    -- Runs without this function come first: they have 0.
    r.runs - count(*) OVER (
      PARTITION BY a.is_line, a.is_after, a.file, a.line, a.function, a.is_backward)
    + row_number() OVER (
      PARTITION BY a.is_line, a.is_after, a.file, a.line, a.function, a.is_backward
      ORDER BY a.bytes, a.run) AS place
  FROM run_amounts a
  JOIN side_runs r ON r.is_after = a.is_after
), amounts AS (
  SELECT is_line, file, line, function, is_backward,
    sum(CASE WHEN is_after = 0 THEN bytes ELSE 0 END) AS before_bytes,
    sum(CASE WHEN is_after = 1 THEN bytes ELSE 0 END) AS after_bytes
  FROM placed_amounts
  WHERE 2 * place IN (runs, runs + 1)
  GROUP BY is_line, file, line, function, is_backward
), functions AS (
  -- The row of a function has its amounts; its lines are placed by their growth.
  SELECT file, line, function, is_backward,
    CAST(max(CASE WHEN is_line = 0 THEN before_bytes END) OVER (
      PARTITION BY file, function, is_backward) AS BIGINT) AS before_bytes,
    CAST(max(CASE WHEN is_line = 0 THEN after_bytes END) OVER (
      PARTITION BY file, function, is_backward) AS BIGINT) AS after_bytes,
    row_number() OVER (
      PARTITION BY file, function, is_backward
      ORDER BY is_line DESC NULLS LAST, after_bytes - before_bytes DESC NULLS LAST,
        line NULLS LAST) AS place
  FROM amounts
)
SELECT b.git_commit AS before_commit, a.git_commit AS after_commit, f.file, f.line, f.function,
  f.is_backward, f.before_bytes, f.after_bytes, f.after_bytes - f.before_bytes AS grown_bytes
FROM functions f
CROSS JOIN after_place a
CROSS JOIN before_place b
WHERE f.place = 1 AND f.after_bytes - f.before_bytes >= :min_bytes
ORDER BY grown_bytes DESC NULLS LAST, f.file NULLS LAST, f.line NULLS LAST, f.function NULLS LAST,
  f.is_backward
