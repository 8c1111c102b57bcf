-- Which rank of each run was first to run out of memory?
--
-- Ranks are compared by step, since the clocks of hosts differ; ranks in the same step by their
-- clocks. A rank is the one that the process reported, or else the number of its folder. If a
-- rank's process ended before another with this rank began, the job was restarted: the older
-- attempt is first. Only errors of PyTorch's allocator count. An error at which PyTorch had no
-- segment has no recorded moment. If a rank has such an error, the first error is unknown: step,
-- time_ns and the bytes are null, and card, first_rank and attempt too, unless only one rank
-- failed.
--
-- Parameters:
--   max_rows BIGINT = 100: Most rows to return.
-- Columns:
--   run VARCHAR: The run.
--   git_commit VARCHAR: Commit of the program's checkout.
--   card VARCHAR: Name of the GPU of the first rank.
--   failed_ranks BIGINT (number): Ranks that ran out of memory.
--   ranks BIGINT (number): Ranks in the archive.
--   first_rank BIGINT (number): The first of the failed ranks.
--   attempt BIGINT (number): Attempt of this rank, from 1.
--   step BIGINT (number): Steps begun then. Null without steps.
--   time_ns BIGINT (nanoseconds): Time from the start of its recording.
--   reserved_bytes BIGINT (bytes): Its reserved memory then.
--   allocated_bytes BIGINT (bytes): Its allocated memory then.
WITH processes AS (
  SELECT r.run, r.rank, COALESCE(r.reported_rank, r.rank) AS job_rank,
    count(DISTINCT o.rank) + 1 AS attempt
  FROM runs r
  LEFT JOIN runs o ON o.run = r.run AND o.reported_rank = r.reported_rank
    AND o.started_unix_ns < r.started_unix_ns
    AND o.started_unix_ns + o.duration_ns <= r.started_unix_ns
  GROUP BY r.run, r.rank, COALESCE(r.reported_rank, r.rank)
), moments AS (
  SELECT run, rank, device, time_ns, seq, step, sum(size_bytes) AS reserved_bytes,
    sum(allocated_bytes) AS allocated_bytes
  FROM segments
  WHERE moment = 'oom'
  GROUP BY run, rank, device, time_ns, seq, step
), recorded AS (
  SELECT run, rank, count(*) AS moments FROM moments GROUP BY run, rank
), failed AS (
  -- Of many errors on a GPU, the export has the first 15 and the last.
  SELECT r.run, count(DISTINCT q.job_rank) AS failed_ranks, count(*) AS failed,
    min(q.job_rank) AS job_rank, min(q.attempt) AS attempt,
    CASE WHEN min(r.card) = max(r.card) THEN min(r.card) END AS card,
    count(CASE WHEN c.moments >= r.ooms OR c.moments >= 16 THEN 1 END) AS timed
  FROM runs r
  JOIN processes q ON q.run = r.run AND q.rank = r.rank
  LEFT JOIN recorded c ON c.run = r.run AND c.rank = r.rank
  WHERE r.ooms > 0
  GROUP BY r.run
), placed AS (
  SELECT m.run, q.job_rank, q.attempt, r.card, m.step, m.time_ns, m.reserved_bytes,
    m.allocated_bytes,
    row_number() OVER (
      PARTITION BY m.run
      ORDER BY q.attempt, m.step NULLS LAST, r.started_unix_ns + m.time_ns NULLS LAST, q.job_rank,
        m.rank, m.device, m.seq NULLS FIRST) AS place
  FROM moments m
  JOIN processes q ON q.run = m.run AND q.rank = m.rank
  JOIN runs r ON r.run = m.run AND r.rank = m.rank
), sizes AS (
  SELECT run, min(started_unix_ns) AS started_unix_ns, min(git_commit) AS git_commit,
    count(DISTINCT COALESCE(reported_rank, rank)) AS ranks
  FROM runs
  GROUP BY run
)
SELECT f.run, z.git_commit,
  COALESCE(p.card, CASE WHEN f.failed_ranks = 1 THEN f.card END) AS card,
  f.failed_ranks, z.ranks,
  CASE WHEN f.failed_ranks = 1 THEN f.job_rank ELSE p.job_rank END AS first_rank,
  CASE WHEN f.failed_ranks = 1 THEN f.attempt ELSE p.attempt END AS attempt, p.step, p.time_ns,
  CAST(p.reserved_bytes AS BIGINT) AS reserved_bytes,
  CAST(p.allocated_bytes AS BIGINT) AS allocated_bytes
FROM failed f
JOIN sizes z ON z.run = f.run
LEFT JOIN placed p ON p.run = f.run AND p.place = 1 AND f.timed = f.failed
ORDER BY z.started_unix_ns DESC NULLS LAST, f.run
LIMIT :max_rows
