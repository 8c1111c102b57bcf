-- In which rank, step and line did the leak of each run begin?
--
-- The leaks are those of tensors that reports found. A leak begins in the first step whose
-- blocks are live when the last step begins: Python frees most blocks when it exits. Of equal
-- steps, the lowest rank is first. A rank is the one that the process reported, or else the
-- number of its folder. If a rank's process ended before another with this rank began, the job
-- was restarted: the older attempt is first. Reads allocations.
--
-- Parameters:
--   command VARCHAR = '%': LIKE pattern for the command line.
--   max_rows BIGINT = 100: Most rows to return.
-- Columns:
--   run VARCHAR: The run.
--   git_commit VARCHAR: Commit of the program's checkout.
--   leaking_ranks BIGINT (number): Ranks that leak.
--   ranks BIGINT (number): Ranks in the archive.
--   first_rank BIGINT (number): The first of those that leak.
--   attempt BIGINT (number): Attempt of this rank, from 1.
--   first_step BIGINT (number): The step in which its leak began. 0 is before the first one.
--   file VARCHAR: File of the line that leaks, or the library.
--   line BIGINT (number): The line.
--   function VARCHAR: Its function.
--   blocks BIGINT (number): Blocks that this line leaked in this rank.
--   bytes BIGINT (bytes): Their bytes.
WITH leaks AS (
  SELECT DISTINCT f.run, f.rank, r.steps, s.site, COALESCE(s.file, s.module) AS file, s.line,
    s.function
  FROM findings f
  JOIN sites s ON s.run = f.run AND s.rank = f.rank AND s.site_id = f.site_id
  JOIN runs r ON r.run = f.run AND r.rank = f.rank
  WHERE f.kind = 'leak' AND f.evidence_json NOT LIKE '%"kind":"device"%'
    AND f.evidence_json NOT LIKE '%"kind":"pinned_host"%'
    AND f.evidence_json NOT LIKE '%"kind":"reserved"%'
    AND s.layer = 'torch' AND COALESCE(r.command_json, '') LIKE :command
), processes AS (
  SELECT r.run, r.rank, COALESCE(r.reported_rank, r.rank) AS job_rank,
    count(DISTINCT o.rank) + 1 AS attempt
  FROM runs r
  LEFT JOIN runs o ON o.run = r.run AND o.reported_rank = r.reported_rank
    AND o.started_unix_ns < r.started_unix_ns
    AND o.started_unix_ns + o.duration_ns <= r.started_unix_ns
  GROUP BY r.run, r.rank, COALESCE(r.reported_rank, r.rank)
), begun AS (
  SELECT l.run, l.rank, p.job_rank, p.attempt, l.site, l.file, l.line, l.function,
    min(a.start_step) AS first_step, count(*) AS blocks, CAST(sum(a.size_bytes) AS BIGINT) AS bytes
  FROM leaks l
  JOIN allocations a ON a.run = l.run AND a.rank = l.rank AND a.site = l.site
  JOIN processes p ON p.run = l.run AND p.rank = l.rank
  WHERE a.layer = 'torch' AND a.start_step < l.steps AND (a.state = 'live' OR a.end_step >= l.steps)
  GROUP BY l.run, l.rank, p.job_rank, p.attempt, l.site, l.file, l.line, l.function
), placed AS (
  SELECT run, job_rank, attempt, file, line, function, first_step, blocks, bytes,
    row_number() OVER (
      PARTITION BY run
      ORDER BY attempt, first_step, job_rank, rank, bytes DESC NULLS LAST, site) AS place
  FROM begun
), leaking AS (
  SELECT run, count(DISTINCT job_rank) AS leaking_ranks FROM begun GROUP BY run
), sizes AS (
  SELECT run, min(started_unix_ns) AS started_unix_ns, min(git_commit) AS git_commit,
    count(DISTINCT COALESCE(reported_rank, rank)) AS ranks
  FROM runs
  GROUP BY run
)
SELECT p.run, z.git_commit, l.leaking_ranks, z.ranks, p.job_rank AS first_rank, p.attempt,
  p.first_step, p.file, p.line, p.function, p.blocks, p.bytes
FROM placed p
JOIN leaking l ON l.run = p.run
JOIN sizes z ON z.run = p.run
WHERE p.place = 1
ORDER BY z.started_unix_ns DESC NULLS LAST, p.run
LIMIT :max_rows
