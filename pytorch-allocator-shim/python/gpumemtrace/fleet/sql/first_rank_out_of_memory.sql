-- Which rank of each run was first to run out of memory?
--
-- Ranks are compared by step, since the clocks of hosts differ; ranks in the same step by their
-- clocks. Only errors of PyTorch's allocator count.
--
-- Parameters:
--   max_rows BIGINT = 100: Most rows to return.
-- Columns:
--   run VARCHAR: The run.
--   git_commit VARCHAR: Commit of the program's checkout.
--   card VARCHAR: Name of the GPU.
--   failed_ranks BIGINT (number): Ranks that ran out of memory.
--   ranks BIGINT (number): Ranks in the lake.
--   first_rank BIGINT (number): The first of them.
--   step BIGINT (number): Steps begun then. Null without steps.
--   time_ns BIGINT (nanoseconds): Time from the start of its recording.
--   reserved_bytes BIGINT (bytes): Its reserved memory then.
--   allocated_bytes BIGINT (bytes): Its allocated memory then.
WITH moments AS (
  SELECT run, rank, device, time_ns, seq, step, sum(size_bytes) AS reserved_bytes,
    sum(allocated_bytes) AS allocated_bytes
  FROM segments
  WHERE moment = 'oom'
  GROUP BY run, rank, device, time_ns, seq, step
), placed AS (
  SELECT m.run, m.rank, r.git_commit, r.card, m.step, m.time_ns, m.reserved_bytes,
    m.allocated_bytes,
    row_number() OVER (
      PARTITION BY m.run
      ORDER BY m.step NULLS LAST, r.started_unix_ns + m.time_ns NULLS LAST, m.rank, m.device,
        m.seq NULLS FIRST) AS place
  FROM moments m
  JOIN runs r ON r.run = m.run AND r.rank = m.rank
), failed AS (
  SELECT run, count(DISTINCT rank) AS failed_ranks FROM moments GROUP BY run
), sizes AS (
  SELECT run, min(started_unix_ns) AS started_unix_ns, count(*) AS ranks FROM runs GROUP BY run
)
SELECT p.run, p.git_commit, p.card, f.failed_ranks, z.ranks, p.rank AS first_rank, p.step,
  p.time_ns, CAST(p.reserved_bytes AS BIGINT) AS reserved_bytes,
  CAST(p.allocated_bytes AS BIGINT) AS allocated_bytes
FROM placed p
JOIN failed f ON f.run = p.run
JOIN sizes z ON z.run = p.run
WHERE p.place = 1
ORDER BY z.started_unix_ns DESC NULLS LAST, p.run
LIMIT :max_rows
