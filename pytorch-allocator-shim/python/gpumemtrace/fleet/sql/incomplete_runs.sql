-- Which runs lack something, so that their numbers may be too small?
--
-- A rank can have several rows. Ranks that are missing from the lake have one row per run.
--
-- Parameters:
--   max_rows BIGINT = 1000: Most rows to return.
-- Columns:
--   run VARCHAR: The run.
--   rank BIGINT (number): The rank. Null for missing ranks.
--   reason VARCHAR: events_missing, unfinished (the process was running at the export), snapshot (a
--     snapshot of PyTorch ends where it was taken), window (a part of the run was exported) or
--     ranks_missing.
--   missing_ranks BIGINT (number): Ranks of the job that no trace in the lake reports. Else null.
--   details VARCHAR: What is missing, as a list in JSON. Else null.
WITH reasons AS (
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
)
SELECT run, rank, reason, missing_ranks, details
FROM reasons
ORDER BY run DESC NULLS LAST, rank NULLS FIRST, reason
LIMIT :max_rows
