-- Which runs lack something, so that their numbers may be too small?
--
-- A rank can have several rows. A rank is the one that the process reported, or else the number
-- of its folder. If a rank's process ended before another with this rank began, the job was
-- restarted. Ranks that are missing from the archive have one row per run.
--
-- Parameters:
--   max_rows BIGINT = 1000: Most rows to return.
-- Columns:
--   run VARCHAR: The run.
--   rank BIGINT (number): The rank. Null for missing ranks.
--   attempt BIGINT (number): Attempt of this rank, from 1. Null for missing ranks.
--   reason VARCHAR: events_missing, unfinished (the process was running at the export), snapshot (a
--     snapshot of PyTorch ends where it was taken), window (a part of the run was exported) or
--     ranks_missing.
--   missing_ranks BIGINT (number): Ranks of the job that no trace in the archive reports. Else null.
--   details VARCHAR: What is missing, as a list in JSON. Else null.
WITH processes AS (
  SELECT r.run, r.rank, COALESCE(r.reported_rank, r.rank) AS job_rank,
    count(DISTINCT o.rank) + 1 AS attempt
  FROM runs r
  LEFT JOIN runs o ON o.run = r.run AND o.reported_rank = r.reported_rank
    AND o.started_unix_ns < r.started_unix_ns
    AND o.started_unix_ns + o.duration_ns <= r.started_unix_ns
  GROUP BY r.run, r.rank, COALESCE(r.reported_rank, r.rank)
), reasons AS (
  SELECT run, rank, 'events_missing' AS reason, CAST(NULL AS BIGINT) AS missing_ranks,
    incomplete_json AS details
  FROM runs WHERE NOT is_complete
  UNION ALL
  -- Only snapshots have neither a process nor an id.
  SELECT run, rank, CASE WHEN trace_id IS NULL AND pid IS NULL THEN 'snapshot' ELSE 'unfinished' END
    AS reason, CAST(NULL AS BIGINT) AS missing_ranks,
    CAST(NULL AS VARCHAR(1)) AS details
  FROM runs WHERE ending = 'running'
  UNION ALL
  SELECT run, rank, 'window' AS reason, CAST(NULL AS BIGINT) AS missing_ranks,
    CAST(NULL AS VARCHAR(1)) AS details
  FROM runs WHERE NOT is_whole
  UNION ALL
  SELECT run, CAST(NULL AS BIGINT) AS rank, 'ranks_missing' AS reason,
    max(world_size) - count(DISTINCT reported_rank) AS missing_ranks,
    CAST(NULL AS VARCHAR(1)) AS details
  FROM runs GROUP BY run HAVING max(world_size) > count(DISTINCT reported_rank)
), named AS (
  SELECT e.run, p.job_rank, p.attempt, e.rank AS folder, e.reason, e.missing_ranks, e.details
  FROM reasons e
  LEFT JOIN processes p ON p.run = e.run AND p.rank = e.rank
)
SELECT run, job_rank AS rank, attempt, reason, missing_ranks, details
FROM named
ORDER BY run DESC NULLS LAST, job_rank NULLS FIRST, attempt NULLS FIRST, folder NULLS FIRST, reason
LIMIT :max_rows
