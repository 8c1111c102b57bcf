-- What grew from one version of a program to the next: the rule of `gpumemtrace history`
-- (docs/commands/history.md). Included by questions, which give :command, :before, :after,
-- :min_bytes and :min_share.
WITH processes AS (
  -- The program is the command line of the lowest rank, and the commit is that of all ranks.
  SELECT run, rank, COALESCE(reported_rank, -1) AS job_rank,
    COALESCE(is_whole AND is_complete AND COALESCE(ending, '') = 'exit' AND peak_live_bytes > 0
      AND COALESCE(exit_code, CASE WHEN ooms > 0 THEN 1 ELSE 0 END) = 0, false) AS is_good,
    peak_live_bytes,
    min(started_unix_ns) OVER (PARTITION BY run) AS started_unix_ns,
    CASE WHEN min(git_commit) OVER (PARTITION BY run) = max(git_commit) OVER (PARTITION BY run)
      THEN min(git_commit) OVER (PARTITION BY run) END AS git_commit,
    first_value(command_json) OVER (
      PARTITION BY run
      ORDER BY reported_rank NULLS LAST, started_unix_ns NULLS LAST, rank) AS program
  FROM runs
), placed_processes AS (
  SELECT run, rank, job_rank, is_good, peak_live_bytes, started_unix_ns, git_commit, program,
    COALESCE('commit ' || git_commit, 'run ' || run) AS version
  FROM processes
  WHERE program IS NOT NULL AND started_unix_ns IS NOT NULL AND program LIKE :command
), versions AS (
  SELECT program, version, max(git_commit) AS git_commit, min(started_unix_ns) AS started_unix_ns,
    max(CASE WHEN is_good THEN 1 ELSE 0 END) AS has_good
  FROM placed_processes
  GROUP BY program, version
), placed_versions AS (
  SELECT program, version, git_commit, started_unix_ns, has_good,
    row_number() OVER (PARTITION BY program ORDER BY started_unix_ns, version) AS place,
    count(*) OVER (PARTITION BY program) AS versions
  FROM versions
), baselines AS (
  -- The last version before that has a complete trace of a process that ended normally.
  SELECT a.program, a.version, max(b.place) AS before_place
  FROM placed_versions a
  JOIN placed_versions b ON b.program = a.program AND b.place < a.place AND b.has_good = 1
  GROUP BY a.program, a.version
), pairs AS (
  SELECT a.program, b.version AS before_version, a.version AS after_version,
    b.git_commit AS before_commit, a.git_commit AS after_commit, a.started_unix_ns,
    a.program || ' ' || b.version || ' ' || a.version AS pair
  FROM placed_versions a
  JOIN placed_versions b ON b.program = a.program
  LEFT JOIN baselines l ON l.program = a.program AND l.version = a.version
  WHERE (:before = '' AND b.place = l.before_place
      AND (:after = '' OR COALESCE(a.git_commit, '') = :after))
    OR (:before <> '' AND COALESCE(b.git_commit, '') = :before AND b.version <> a.version
      AND (COALESCE(a.git_commit, '') = :after OR (:after = '' AND a.place = a.versions)))
), sides AS (
  SELECT pair, program, before_version AS version, 0 AS is_after FROM pairs
  UNION ALL
  SELECT pair, program, after_version, 1 FROM pairs
), gpus AS (
  SELECT DISTINCT run, rank, device FROM sites WHERE layer = 'torch' AND peak_bytes > 0
), good_ranks AS (
  SELECT program, version, job_rank, max(CASE WHEN is_good THEN 1 ELSE 0 END) AS has_good
  FROM placed_processes
  GROUP BY program, version, job_rank
), side_gpus AS (
  -- Before, only complete traces count that ended normally. After, others count too for a rank
  -- that has no such trace.
  SELECT s.pair, s.is_after, p.job_rank, p.run, p.rank, p.peak_live_bytes, g.device
  FROM sides s
  JOIN placed_processes p ON p.program = s.program AND p.version = s.version
  JOIN good_ranks r ON r.program = s.program AND r.version = s.version AND r.job_rank = p.job_rank
  JOIN gpus g ON g.run = p.run AND g.rank = p.rank
  WHERE p.peak_live_bytes > 0 AND (p.is_good OR (s.is_after = 1 AND r.has_good = 0))
), common_ranks AS (
  SELECT pair, job_rank
  FROM side_gpus
  GROUP BY pair, job_rank
  HAVING min(is_after) = 0 AND max(is_after) = 1
), compared AS (
  SELECT g.pair, g.is_after, g.run, g.rank, g.device, g.peak_live_bytes,
    count(*) OVER (PARTITION BY g.pair, g.is_after, g.run) AS gpus
  FROM side_gpus g
  JOIN common_ranks c ON c.pair = g.pair AND c.job_rank = g.job_rank
), gpu_lines AS (
  SELECT c.pair, c.is_after, c.run, c.rank, c.device, c.gpus,
    COALESCE(s.file, s.module) AS file, s.function, s.is_backward, s.line, s.source_id,
    COALESCE(s.file, s.module, '') || '|' || COALESCE(s.function, '') || '|'
      || CASE WHEN s.is_backward THEN 'b' ELSE 'f' END AS name,
    CAST(sum(s.peak_bytes) AS BIGINT) AS bytes
  FROM compared c
  JOIN sites s ON s.run = c.run AND s.rank = c.rank AND s.device = c.device
  WHERE s.layer = 'torch' AND s.peak_bytes > 0
  GROUP BY c.pair, c.is_after, c.run, c.rank, c.device, c.gpus, COALESCE(s.file, s.module),
    s.function, s.is_backward, s.line, s.source_id, COALESCE(s.file, s.module, '')
), lines AS (
  SELECT pair, is_after, name, file, function, is_backward, line, max(source_id) AS source_id,
    max(bytes) AS bytes
  FROM gpu_lines
  GROUP BY pair, is_after, name, file, function, is_backward, line
), functions AS (
  SELECT pair, is_after, name, file, function, is_backward, count(*) AS lines,
    count(source_id) AS texts, sum(bytes) AS bytes
  FROM lines
  GROUP BY pair, is_after, name, file, function, is_backward
), lonely AS (
  -- Functions of one side.
  SELECT pair, name, max(is_after) AS is_after
  FROM functions
  GROUP BY pair, name
  HAVING count(*) = 1
), arrived AS (
  SELECT f.pair, f.name, f.lines, f.texts, f.bytes
  FROM functions f
  JOIN lonely l ON l.pair = f.pair AND l.name = f.name AND l.is_after = f.is_after
  WHERE f.is_after = 1
), gone AS (
  SELECT f.pair, f.name, f.lines, f.texts, f.bytes
  FROM functions f
  JOIN lonely l ON l.pair = f.pair AND l.name = f.name AND l.is_after = f.is_after
  WHERE f.is_after = 0
), texts AS (
  SELECT DISTINCT pair, name, source_id FROM lines WHERE is_after = 0 AND source_id IS NOT NULL
), shared AS (
  SELECT a.pair, a.name, t.name AS old_name, sum(l.bytes) AS bytes
  FROM arrived a
  JOIN lines l ON l.pair = a.pair AND l.name = a.name AND l.is_after = 1
  JOIN texts t ON t.pair = a.pair AND t.source_id = l.source_id
  GROUP BY a.pair, a.name, t.name
), moves AS (
  SELECT a.pair, a.name, g.name AS old_name
  FROM arrived a
  JOIN gone g ON g.pair = a.pair
  LEFT JOIN shared s ON s.pair = a.pair AND s.name = a.name AND s.old_name = g.name
  WHERE (a.texts > 0 AND g.texts > 0 AND 2 * COALESCE(s.bytes, 0) >= a.bytes)
    OR ((a.texts = 0 OR g.texts = 0) AND a.lines = g.lines AND a.bytes = g.bytes)
), old_names AS (
  SELECT f.pair, f.name, COALESCE(m.old_name, f.name) AS old_name
  FROM functions f
  LEFT JOIN moves m ON m.pair = f.pair AND m.name = f.name
  WHERE f.is_after = 1
), gpu_functions AS (
  SELECT pair, 1 AS is_after, name, run, rank, device, gpus, CAST(sum(bytes) AS BIGINT) AS bytes
  FROM gpu_lines
  WHERE is_after = 1
  GROUP BY pair, name, run, rank, device, gpus
  UNION ALL
  SELECT o.pair, 0, o.name, l.run, l.rank, l.device, l.gpus, CAST(sum(l.bytes) AS BIGINT)
  FROM old_names o
  JOIN gpu_lines l ON l.pair = o.pair AND l.name = o.old_name
  WHERE l.is_after = 0
  GROUP BY o.pair, o.name, l.run, l.rank, l.device, l.gpus
), placed_functions AS (
  -- GPUs without the function come first: they have 0.
  SELECT pair, is_after, name, run, gpus, bytes,
    gpus - count(*) OVER (PARTITION BY pair, is_after, name, run)
      + row_number() OVER (
        PARTITION BY pair, is_after, name, run ORDER BY bytes, rank, device) AS place
  FROM gpu_functions
), run_functions AS (
  SELECT pair, is_after, name, run, max(bytes) AS most,
    COALESCE(max(CASE WHEN 2 * place IN (gpus, gpus + 1) THEN bytes END), 0) AS median
  FROM placed_functions
  GROUP BY pair, is_after, name, run
), run_amounts AS (
  -- Of all runs: those without the function have 0.
  SELECT n.pair, s.is_after, n.name, s.run, COALESCE(f.median, 0) AS median,
    COALESCE(f.most, 0) AS most
  FROM (SELECT DISTINCT pair, name FROM old_names) AS n
  JOIN (SELECT DISTINCT pair, is_after, run FROM compared) AS s ON s.pair = n.pair
  LEFT JOIN run_functions f ON f.pair = n.pair AND f.is_after = s.is_after AND f.name = n.name
    AND f.run = s.run
), choices AS (
  SELECT pair, is_after, name, run, 'median' AS gpus, median AS bytes FROM run_amounts
  UNION ALL
  SELECT pair, is_after, name, run, 'most', most FROM run_amounts
  UNION ALL
  -- The peaks, as a function without a name.
  SELECT pair, is_after, '' AS name, run, 'most', max(peak_live_bytes) AS bytes
  FROM compared
  GROUP BY pair, is_after, run
), placed_choices AS (
  SELECT pair, is_after, name, run, gpus, bytes,
    row_number() OVER (PARTITION BY pair, is_after, name, gpus ORDER BY bytes, run) AS place,
    count(*) OVER (PARTITION BY pair, is_after, name, gpus) AS runs
  FROM choices
), middles AS (
  SELECT pair, is_after, name, run, gpus, bytes, runs,
    max(CASE WHEN 2 * place IN (runs, runs + 1) THEN bytes END) OVER (
      PARTITION BY pair, is_after, name, gpus) AS middle
  FROM placed_choices
), distances AS (
  SELECT pair, is_after, name, gpus, bytes, runs, middle, abs(bytes - middle) AS distance,
    row_number() OVER (
      PARTITION BY pair, is_after, name, gpus ORDER BY abs(bytes - middle), run) AS place
  FROM middles
), deviations AS (
  SELECT pair, is_after, name, gpus, bytes, runs, middle, distance,
    max(CASE WHEN 2 * place IN (runs + 1, runs + 2) THEN distance END) OVER (
      PARTITION BY pair, is_after, name, gpus) AS deviation
  FROM distances
), usual_runs AS (
  -- Without runs that differ from the others, of at least three: the rule of rank_skew.
  SELECT pair, is_after, name, gpus, bytes
  FROM deviations
  WHERE runs < 3
    OR CAST(distance AS DOUBLE)
      <= CAST(3.5 AS DOUBLE) * CAST(1.4826 AS DOUBLE) * CAST(deviation AS DOUBLE)
    OR CAST(distance AS DOUBLE) < CAST(0.05 AS DOUBLE) * CAST(middle AS DOUBLE)
), amounts AS (
  SELECT pair, name, gpus, max(CASE WHEN is_after = 0 THEN bytes END) AS before_bytes,
    min(CASE WHEN is_after = 1 THEN bytes END) AS after_bytes
  FROM usual_runs
  GROUP BY pair, name, gpus
), grown_amounts AS (
  SELECT pair, name, gpus, before_bytes, after_bytes,
    row_number() OVER (PARTITION BY pair, name ORDER BY gpus) AS place
  FROM amounts
  WHERE after_bytes - before_bytes >= :min_bytes
    AND CAST(after_bytes - before_bytes AS DOUBLE) >= :min_share * CAST(before_bytes AS DOUBLE)
), chosen AS (
  -- The median if it grew, else the most.
  SELECT pair, name, gpus, before_bytes, after_bytes FROM grown_amounts WHERE place = 1
), old_lines AS (
  SELECT o.pair, o.name, l.source_id, l.bytes
  FROM old_names o
  JOIN lines l ON l.pair = o.pair AND l.name = o.old_name AND l.is_after = 0
), old_texts AS (
  SELECT pair, name, count(source_id) AS texts FROM old_lines GROUP BY pair, name
), line_growth AS (
  SELECT l.pair, l.name, l.line, l.bytes, l.bytes - COALESCE(max(o.bytes), 0) AS grown
  FROM lines l
  JOIN chosen c ON c.pair = l.pair AND c.name = l.name
  LEFT JOIN old_texts t ON t.pair = l.pair AND t.name = l.name
  LEFT JOIN old_lines o ON o.pair = l.pair AND o.name = l.name
    AND ((l.source_id IS NOT NULL AND t.texts > 0 AND o.source_id = l.source_id)
      OR ((l.source_id IS NULL OR t.texts = 0) AND o.bytes = l.bytes))
  WHERE l.is_after = 1
  GROUP BY l.pair, l.name, l.line, l.bytes
), largest_lines AS (
  SELECT pair, name, line, bytes, grown,
    max(grown) OVER (PARTITION BY pair, name) AS most_grown,
    max(bytes) OVER (PARTITION BY pair, name) AS most_bytes
  FROM line_growth
), named_lines AS (
  SELECT pair, name, min(line) AS line, max(line) AS last_line
  FROM largest_lines
  WHERE grown = most_grown AND most_grown > 0 OR bytes = most_bytes AND most_grown <= 0
  GROUP BY pair, name
), origins AS (
  SELECT m.pair, m.name, min(g.function) AS first_function, max(g.function) AS last_function
  FROM moves m
  JOIN functions g ON g.pair = m.pair AND g.name = m.old_name AND g.is_after = 0
  GROUP BY m.pair, m.name
), grown AS (
  SELECT p.pair, p.program, p.before_commit, p.after_commit, p.started_unix_ns,
    f.file, n.line, CASE WHEN n.last_line <> n.line THEN n.last_line END AS other_line,
    f.function, f.is_backward,
    CASE WHEN o.first_function <> o.last_function
      THEN o.first_function || ', ' || o.last_function ELSE o.first_function END AS moved_from,
    c.gpus, c.before_bytes, c.after_bytes
  FROM chosen c
  JOIN pairs p ON p.pair = c.pair
  JOIN functions f ON f.pair = c.pair AND f.name = c.name AND f.is_after = 1
  JOIN named_lines n ON n.pair = c.pair AND n.name = c.name
  LEFT JOIN origins o ON o.pair = c.pair AND o.name = c.name
)
