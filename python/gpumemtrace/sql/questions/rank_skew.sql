-- In which runs does one rank use much more memory than the others?
--
-- The rule for a rank that differs is that of reports: its distance from the median is more than
-- 3.5 times 1.4826 times the median distance, and at least 5% of the median. The median of an even
-- number of ranks is the lower one, and their median distance the upper one. Of two ranks, the
-- larger differs from the other. A rank counts with its largest GPU. A rank is the one that the
-- process reported, or else the number of its folder. If a rank's process ended before another with
-- this rank began, the job was restarted, and only the newest attempt counts.
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
), distances AS (
  SELECT p.run, abs(p.bytes - b.median_bytes) AS distance, p.ranks,
    row_number() OVER (PARTITION BY p.run ORDER BY abs(p.bytes - b.median_bytes), p.rank) AS place
  FROM placed p
  JOIN by_run b ON b.run = p.run
), deviations AS (
  SELECT run, max(CASE WHEN ranks > 2 AND 2 * place IN (ranks + 1, ranks + 2) THEN distance ELSE 0 END)
    AS deviation
  FROM distances
  GROUP BY run
), excesses AS (
  SELECT b.run, git_commit, ranks, largest_rank, most_bytes, median_bytes, least_bytes,
    CAST(most_bytes AS DOUBLE) / CAST(median_bytes AS DOUBLE) - CAST(1 AS DOUBLE) AS excess
  FROM by_run b
  JOIN deviations d ON d.run = b.run
  WHERE median_bytes > 0
    AND CAST(most_bytes - median_bytes AS DOUBLE)
      > CAST(3.5 AS DOUBLE) * CAST(1.4826 AS DOUBLE) * CAST(deviation AS DOUBLE)
    AND CAST(most_bytes - median_bytes AS DOUBLE)
      >= CAST(0.05 AS DOUBLE) * CAST(median_bytes AS DOUBLE)
)
SELECT run, git_commit, ranks, largest_rank, most_bytes, median_bytes, least_bytes, excess
FROM excesses
WHERE excess >= :min_excess
ORDER BY excess DESC NULLS LAST, run
LIMIT :max_rows
