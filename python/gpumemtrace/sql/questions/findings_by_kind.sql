-- Which findings do reports have, and in how many runs?
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
-- Columns:
--   kind VARCHAR: The kind of finding, as in docs/analyses/index.md.
--   severity VARCHAR: critical, warning or info.
--   findings BIGINT (number): Findings in all reports.
--   ranks BIGINT (number): Processes with such a finding.
--   runs BIGINT (number): Runs with such a finding.
--   last_run VARCHAR: The newest run with one.
--   last_finding VARCHAR: Its finding in one sentence.
WITH placed AS (
  SELECT f.run, f.rank, f.kind, f.severity, f.summary,
    row_number() OVER (
      PARTITION BY f.kind, f.severity
      ORDER BY r.started_unix_ns DESC NULLS LAST, f.run DESC NULLS LAST, f.rank, f.rank_in_report) AS place,
    row_number() OVER (
      PARTITION BY f.kind, f.severity, f.run, f.rank ORDER BY f.rank_in_report) AS place_in_rank
  FROM findings f
  JOIN runs r ON r.run = f.run AND r.rank = f.rank
  WHERE COALESCE(r.command_json, '') LIKE :command
)
SELECT kind, severity, count(*) AS findings,
  count(CASE WHEN place_in_rank = 1 THEN 1 END) AS ranks, count(DISTINCT run) AS runs,
  max(CASE WHEN place = 1 THEN run END) AS last_run,
  max(CASE WHEN place = 1 THEN summary END) AS last_finding
FROM placed
GROUP BY kind, severity
ORDER BY CASE severity WHEN 'critical' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END, runs DESC NULLS LAST, kind
