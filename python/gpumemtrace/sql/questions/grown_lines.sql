-- Which functions use more memory at the peak than in the version before, and at which line?
--
-- The rule is that of `gpumemtrace history`. A version is all runs of one program at one commit; a
-- run without a commit is a version of its own. Each version is compared with the last one before
-- it that has a complete trace of a process that ended normally, or with the commit `before`.
-- Memory is compared by function, over the ranks that both versions have: the median over the GPUs
-- of a run, or else the most on any GPU. Growth is the least of any usual run minus the most of any
-- usual run before. A run is unusual if it differs from the others of its version, as a rank of
-- `rank_skew` does. Before, only complete traces of processes that ended normally count. A line is found by its text wherever it moved, where the text is
-- known. A function with another name or file is a move.
--
-- Parameters:
--   before VARCHAR (commit) = '': The commit to compare with. If empty, the version before.
--   after VARCHAR (commit) = '': The commit to look at. If empty, all, or the newest with `before`.
--   command VARCHAR = '%': LIKE pattern for the command line.
--   min_bytes BIGINT = 1048576: Smallest growth to report, in bytes.
--   min_share DOUBLE = 0.05: Smallest growth to report, as a share of the bytes before.
-- Columns:
--   program VARCHAR: The command line, as a list in JSON.
--   before_commit VARCHAR: The commit compared with.
--   after_commit VARCHAR: The commit looked at.
--   file VARCHAR: File of the function, or the library.
--   line BIGINT (number): Its line that grew most.
--   other_line BIGINT (number): Another line that grew as much. Null if there is none.
--   function VARCHAR: The function.
--   is_backward BOOLEAN: True for memory that the backward pass of the line allocated.
--   moved_from VARCHAR: The function before, if it has another name or file now.
--   gpus VARCHAR: median or most: which bytes of several GPUs are compared.
--   before_bytes BIGINT (bytes): Memory of the function before.
--   after_bytes BIGINT (bytes): Memory of the function after.
--   grown_bytes BIGINT (bytes): The difference.
-- include _growth.sql
SELECT program, before_commit, after_commit, file, line, other_line, function, is_backward,
  moved_from, gpus, before_bytes, after_bytes, after_bytes - before_bytes AS grown_bytes
FROM grown
ORDER BY started_unix_ns DESC NULLS LAST, program, after_commit NULLS LAST,
  grown_bytes DESC NULLS LAST, file NULLS LAST, line NULLS LAST, function NULLS LAST, is_backward
