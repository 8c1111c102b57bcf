-- Why did runs fail?
--
-- A run has one cause, the first of these that a process shows: out_of_memory (an error, and the
-- process failed), out_of_memory_unknown_end (an error, and the exit code is unknown), crashed,
-- error_exit (an exit code other than 0, as after an uncaught exception), killed (last, since
-- launchers kill the other ranks if one fails), unknown (the trace was cut, or lacks its ring
-- file), unfinished (the process was running at the export), and out_of_memory_caught (an error,
-- and the exit code is 0). A run without errors whose exit code is unknown is not counted as
-- failed. `gpumemtrace history` has the same rule. If a rank's process ended before another
-- with this rank began, the job was restarted, and only the newest attempt counts. A snapshot of
-- PyTorch does not say how its process ended: one without an out-of-memory error is left out.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
-- Columns:
--   cause VARCHAR: The cause.
--   runs BIGINT (number): Runs that failed like this.
--   share DOUBLE (of all runs): Their share of all runs, failed or not.
--   last_run VARCHAR: The newest of them.
--   last_started_unix_ns BIGINT (nanoseconds since 1970): Start of its newest attempt.
--   last_finding VARCHAR: Its most severe finding.
WITH older AS (
  SELECT DISTINCT o.run, o.rank
  FROM runs o
  JOIN runs r ON r.run = o.run AND r.reported_rank = o.reported_rank
    AND r.started_unix_ns > o.started_unix_ns
    AND r.started_unix_ns >= o.started_unix_ns + o.duration_ns
), causes AS (
  SELECT r.run, r.started_unix_ns, r.worst_finding,
    CASE WHEN ooms > 0 AND (ending IN ('crashed', 'killed') OR exit_code <> 0) THEN 1
      WHEN ooms > 0 AND exit_code IS NULL THEN 2 WHEN ending = 'crashed' THEN 3
      WHEN exit_code <> 0 THEN 4 WHEN ending = 'killed' THEN 5 WHEN ending IS NULL THEN 6
      WHEN ending = 'running' THEN 7 WHEN ooms > 0 THEN 8 ELSE 9 END AS cause,
    CASE worst_severity WHEN 'critical' THEN 1 WHEN 'warning' THEN 2 WHEN 'info' THEN 3
      ELSE 4 END AS severity
  FROM runs r
  LEFT JOIN older o ON o.run = r.run AND o.rank = r.rank
  WHERE COALESCE(command_json, '') LIKE :command AND o.run IS NULL
    -- Only snapshots have neither a process nor an id.
    AND (ooms > 0 OR ending <> 'running' OR trace_id IS NOT NULL OR pid IS NOT NULL)
), by_run AS (
  SELECT run, min(started_unix_ns) AS started_unix_ns, min(cause) AS cause,
    min(severity) AS severity
  FROM causes
  GROUP BY run
), with_finding AS (
  SELECT r.run, r.started_unix_ns, r.cause, min(c.worst_finding) AS finding
  FROM by_run r
  LEFT JOIN causes c ON c.run = r.run AND c.severity = r.severity
  GROUP BY r.run, r.started_unix_ns, r.cause
), placed AS (
  SELECT run, started_unix_ns, cause, finding, count(*) OVER () AS all_runs,
    row_number() OVER (PARTITION BY cause ORDER BY started_unix_ns DESC NULLS LAST, run) AS place
  FROM with_finding
)
SELECT
  CASE cause WHEN 1 THEN 'out_of_memory' WHEN 2 THEN 'out_of_memory_unknown_end'
    WHEN 3 THEN 'crashed' WHEN 4 THEN 'error_exit' WHEN 5 THEN 'killed' WHEN 6 THEN 'unknown'
    WHEN 7 THEN 'unfinished' ELSE 'out_of_memory_caught' END AS cause,
  count(*) AS runs, CAST(count(*) AS DOUBLE) / CAST(max(all_runs) AS DOUBLE) AS share,
  max(CASE WHEN place = 1 THEN run END) AS last_run,
  max(CASE WHEN place = 1 THEN started_unix_ns END) AS last_started_unix_ns,
  max(CASE WHEN place = 1 THEN finding END) AS last_finding
FROM placed AS p
WHERE p.cause < 9
GROUP BY p.cause
ORDER BY runs DESC NULLS LAST, 1
