/**
 * What a page of many ranks contains, as `gpumemtrace ranks --html` and `gpumemtrace history --html`
 * write it (`replay-cli/src/page/runs.rs`): JSON in the blob `report`.
 *
 * Bytes are integers below 2^53. Unknown values are null, never 0.
 */

export interface RunsPage {
  version: 1;
  headline: { severity: string; verdict: string; program: string };
  /** What the page leaves out, as sentences. */
  notes: string[];
  /** In the order of their start. */
  runs: RunData[];
  /** The latest version first. */
  regressions: RegressionData[];
}

export interface RunData {
  name: string;
  started_unix_ns: number | null;
  /** The start as text; null if it is unknown. */
  started: string | null;
  git_commit: string | null;
  program: string | null;
  torch: string | null;
  traces: number;
  hosts: number;
  /** The peak of allocated memory over all GPUs; null without any. */
  peak: { median_bytes: number; least_bytes: number; most_bytes: number } | null;
  /** The most severe finding of all ranks; null without findings. */
  finding: FindingData | null;
  /** What is missing, as sentences. */
  missing: string[];
  lines: LineData[];
  ooms: OomData[];
  /** One for each GPU of each rank; null if the page leaves them out. */
  ranks: RankData[] | null;
  /** The report as `gpumemtrace ranks` prints it. */
  text: string;
}

export interface FindingData {
  severity: string;
  summary: string;
}

export interface LineData {
  line: string;
  /** What grows: `tensors`, `device`, `pinned_host` or `reserved`. */
  kind: string;
  ranks: number;
  /** The first ranks by name. */
  names: string;
  bytes: number;
  bytes_per_step: number | null;
  first_step: number | null;
}

export interface OomData {
  rank: string;
  line: string;
  step: number | null;
  requested_bytes: number;
}

export interface RankData {
  /** Such as `rank 3` or `rank 3, GPU 1`. */
  name: string;
  /** By which the ranks are ordered; null if it is unknown. */
  rank: number | null;
  path: string;
  host: string | null;
  end: string;
  steps: number | null;
  duration_ns: number | null;
  total_bytes: number | null;
  peak_live_bytes: number | null;
  peak_reserved_bytes: number | null;
  finding: FindingData | null;
  /** The most allocated bytes in equal parts of the recording. */
  live_bytes: (number | null)[];
}

export interface RegressionData {
  program: string;
  /** Names of the runs, and their commits. */
  before: string;
  after: string;
  before_commit: string | null;
  after_commit: string | null;
  line: string;
  before_bytes: number;
  after_bytes: number;
}
