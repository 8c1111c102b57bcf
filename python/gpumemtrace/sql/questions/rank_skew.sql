-- In which runs does one rank use much more memory than the others?
--
-- A rank counts with its largest GPU. A rank is the one that the process reported, or else the
-- number of its folder. If a rank's process ended before another with this rank began, the job
-- was restarted, and only the newest attempt counts. The median of an even number of ranks is
-- the lower one.
--
-- Parameters:
--   min_excess DOUBLE = 0.05: Runs with a smaller excess are left out.
--   max_rows BIGINT = 100: Most rows to return.
-- Columns:
--   run VARCHAR: The run.
--   git_commit VARCHAR: Commit of the program's checkout.
--   ranks BIGINT (number): Ranks with a known peak.
--   largest_rank BIGINT (number): The rank with the largest peak.
--   most_bytes BIGINT (bytes): Its peak of allocated memory.
--   median_bytes BIGINT (bytes): The median of the peaks.
--   least_bytes BIGINT (bytes): The smallest peak.
--   excess DOUBLE (of the median): The largest peak divided by the median, minus 1.
WITH older AS (
  SELECT DISTINCT o.run, o.rank
  FROM runs o
  JOIN runs r ON r.run = o.run AND r.reported_rank = o.reported_rank
    AND r.started_unix_ns > o.started_unix_ns
    AND r.started_unix_ns >= o.started_unix_ns + o.duration_ns
), peaks AS (
  SELECT r.run, COALESCE(r.reported_rank, r.rank) AS rank, min(r.git_commit) AS git_commit,
    max(r.peak_live_bytes) AS bytes
  FROM runs r
  LEFT JOIN older o ON o.run = r.run AND o.rank = r.rank
  WHERE r.peak_live_bytes IS NOT NULL AND o.run IS NULL
  GROUP BY r.run, COALESCE(r.reported_rank, r.rank)
), placed AS (
  SELECT run, rank, git_commit, bytes,
    row_number() OVER (PARTITION BY run ORDER BY bytes, rank) AS place,
    row_number() OVER (PARTITION BY run ORDER BY bytes DESC NULLS LAST, rank) AS place_from_largest,
    count(*) OVER (PARTITION BY run) AS ranks
  FROM peaks
), by_run AS (
  SELECT run, min(git_commit) AS git_commit, max(ranks) AS ranks,
    max(CASE WHEN place_from_largest = 1 THEN rank END) AS largest_rank, max(bytes) AS most_bytes,
    max(CASE WHEN 2 * place IN (ranks, ranks + 1) THEN bytes END) AS median_bytes,
    min(bytes) AS least_bytes
  FROM placed
  WHERE ranks > 1
  GROUP BY run
), excesses AS (
  SELECT run, git_commit, ranks, largest_rank, most_bytes, median_bytes, least_bytes,
    CAST(most_bytes AS DOUBLE) / CAST(median_bytes AS DOUBLE) - CAST(1 AS DOUBLE) AS excess
  FROM by_run
  WHERE median_bytes > 0
)
SELECT run, git_commit, ranks, largest_rank, most_bytes, median_bytes, least_bytes, excess
FROM excesses
WHERE excess >= :min_excess
ORDER BY excess DESC NULLS LAST, run
LIMIT :max_rows
