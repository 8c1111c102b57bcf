/**
 * What the page contains, as `gpumemtrace html` writes it (`replay-cli/src/page/`).
 *
 * The page has three blobs in `<script type="application/octet-stream" id="...">` elements, each
 * base64 of raw deflate:
 *
 * - `report`: the exact bytes of the report that `gpumemtrace replay --json` prints;
 * - `columns`: all columns of numbers;
 * - `data`: JSON of type {@link PageData}, which refers to columns by number.
 *
 * A column of the blob is a LEB128 count, then one zigzag LEB128 difference per value; the first is
 * the difference from 0. Columns follow each other in the order of their numbers.
 *
 * Times are nanoseconds since the start of recording, as in the report. Bytes are integers below
 * 2^53. Unknown values are `null`, never 0.
 */

import type { Card } from "../widgets/card.js";

/** The number of a column in the `columns` blob. */
export type Column = number;

export interface PageData {
  version: 1;
  traces: TraceData[];
  /** The text of each trace, as the command wrote it. */
  cards: TraceCards[];
  /** The view of ranks; empty for a single one. */
  rank_cards: Card[];
  /** What was merged or left out to keep the page small. */
  page_card: Card;
  /** Indices of two traces that the page compares, with `--compare`. */
  compare: { before: number; after: number } | null;
  /** Index of the trace that the page shows first: that with the most severe finding. */
  first_trace: number;
}

/** The cards of one trace by view. */
export interface TraceCards {
  headline: {
    severity: string;
    verdict: string;
    /** The verdict above the findings of the overview; null if they say it. */
    above_findings: string | null;
    program: string;
  };
  /** The overview as Markdown. */
  markdown: string;
  /** What is missing from the trace; empty if it is complete. */
  losses: Card[];
  findings: Card[];
  /** By index of the device; one with figures alone if the trace has no device. */
  devices: DeviceCards[];
  /** Empty if there is nothing to show. */
  leaks: Card[];
  oom: Card[];
  gaps: GapMoment[];
  /** Names of the causes of unused reserved memory, in the order of charts from the top down. */
  causes: Record<string, string>;
  run: Card[];
}

/** What the page says about a device; empty for parts that the report lacks. */
export interface DeviceCards {
  figures: Card[];
  memory: Card[];
  sites: Card[];
  settings: Card[];
  /** The difference from the trace of `--compare`. */
  comparison: Card[];
}

/** Reserved memory at a moment of the report, by cause. */
export interface GapMoment {
  /** Ordinal of the device. */
  device: number;
  time_ns: number;
  label: string;
  /** Shown at first. */
  is_first: boolean;
  card: Card;
}

export interface TraceData {
  path: string;
  rank: number | null;
  /** Last moment of the recording. */
  end_ns: number;
  steps: StepData | null;
  marks: { name: string; time_ns: number; step: number | null }[];
  /** Named phases; each with the begins and ends of its intervals. */
  phases: { name: string; begin_ns: Column; end_ns: Column }[];
  frames: Frame[];
  /** The tree of calls: parent node (0 for none) and frame of nodes 1, 2, 3... */
  nodes: { parent: Column; frame: Column };
  /** Innermost node and site of stacks 0, 1, 2... */
  stacks: { node: Column; site: Column };
  /** Call sites, as in the report. */
  sites: PageSite[];
  devices: DeviceData[];
}

export interface StepData {
  /** `steps.source` of the report. */
  source: string;
  /** Number of steps begun. */
  count: number;
  /** Start of steps 1, 2, 3...; what comes before is step 0. Empty if there are very many. */
  start_ns: Column;
}

export interface Frame {
  kind: "python" | "native" | "marker";
  /** Function name, symbol, or `<backward>`. */
  function: string | null;
  /** Source file, or the library of a native frame. */
  file: string | null;
  line: number | null;
  /** Own code of the user, not of a library. */
  is_user: boolean;
}

export interface PageSite {
  /** `site.id` of the report. */
  id: string;
  file: string | null;
  line: number | null;
  function: string | null;
  module: string | null;
  is_backward: boolean;
  /** As the text report names it, such as `train.py:31 in log()`. */
  label: string;
  /** The source line, if it is embedded. */
  source: string | null;
  /** Category of most of its bytes at the peak; null for sites without bytes there. */
  category: string | null;
}

export interface DeviceData {
  ordinal: number;
  name: string | null;
  total_bytes: number | null;
  /** What a block is: a tensor's block of PyTorch, or a driver allocation. */
  layer: "torch" | "driver";
  series: Series;
  bins: SiteBins;
  blocks: BlockTable;
  gap: GapHistory | null;
  /** Exact states of the allocator, by time. */
  keyframes: Keyframe[];
}

/** Least and most bytes per bin. */
export interface Series {
  /**
   * Begins of the bins, and the end of the last, which is not in it; empty without bins. Bins
   * follow events as well as time, so their widths differ.
   */
  edges_ns: Column;
  live_min: Column;
  live_max: Column;
  reserved_min: Column;
  reserved_max: Column;
  device_min: Column;
  device_max: Column;
}

/**
 * Live bytes by site at one instant of each bin: that of its most live bytes. The values of a bin sum
 * up to `live`, with those of `others`. They are never maxima of different instants.
 */
export interface SiteBins {
  /** As those of `Series`. */
  edges_ns: Column;
  /** The instant of the most live bytes of each bin. */
  time_ns: Column;
  live: Column;
  /** Sites with the most bytes in any bin; those with the most bytes over time first. */
  sites: { site: number; bytes: Column }[];
  others: Column;
  /** Number of sites in `others`. */
  other_sites: number;
  /** Other ways to divide `live`; the bytes of each sum up to it. Unknown ways are absent. */
  groups: { by: GroupKind; groups: { name: string; bytes: Column }[] }[];
}

export type GroupKind = "category" | "stream" | "pool";

/**
 * Blocks by birth bin and death bin. A row stands for `count` blocks of one stack with `bytes` in
 * all, born in bin `birth` and freed in bin `death`. `death` is `bins` for blocks never freed.
 * Edge `e` lies between bins `e - 1` and `e`, after all events up to and with the nanosecond
 * `edges_ns[e]`. Bins follow events as well as time, so the distances of edges differ. A block is
 * live at edge `e` if `birth < e && e <= death`. Blocks with `birth === death` were live at no
 * edge: churn.
 */
export interface BlockTable {
  /** Ascending, one more than bins. */
  edges_ns: Column;
  bins: number;
  /** Ascending. */
  birth: Column;
  death: Column;
  stack: Column;
  bytes: Column;
  count: Column;
}

/** Reserved bytes without a tensor, by cause, at some moments; the state of each lasts to the next. */
export interface GapHistory {
  time_ns: Column;
  reserved: Column;
  live: Column;
  gap: Column;
  /** `cause` as in the report's `fragmentation[].causes[].cause`. */
  causes: { cause: string; bytes: Column }[];
}

export interface Keyframe {
  time_ns: number;
  step: number | null;
  /** Why this moment: `peak`, `peak_reserved`, `largest_gap`, `end`, `oom`, `mark`, `interval`. */
  why: string;
  live_bytes: number;
  reserved_bytes: number;
  /** Segments by address. `is_expandable`: the ranges are the mapped pages of an expandable one. */
  segments: { addr: Column; bytes: Column; stream: Column; pool: Column; is_expandable: Column } | null;
  /** Live blocks by address. */
  blocks: { addr: Column; bytes: Column; stack: Column };
}
