/** The parts of the JSON report that the cards of findings read; see docs/report.schema.json. */

export interface ReportFrame {
  kind: "python" | "native";
  file: string | null;
  line: number | null;
  function: string | null;
  module: string | null;
  offset: number | null;
  is_own?: boolean;
}

export interface ReportSite {
  id: string;
  file: string | null;
  line: number | null;
  function: string | null;
  module: string | null;
  offset?: number | null;
  is_backward?: boolean;
  stack: ReportFrame[];
}

export interface SiteBytes {
  site: ReportSite;
  bytes: number;
}

export interface Omitted {
  count: number;
  bytes: number | null;
}

export interface Holder {
  name: string;
  type_name: string | null;
  items: number | null;
  limit_items: number | null;
  chain: string[];
  blocks: number;
  bytes: number;
}

export interface HolderCoverage {
  scan: number;
  blocks: number;
  unresolved: { why: string; blocks: number }[];
}

export type LeakKind = "tensors" | "device" | "pinned_host" | "reserved";

export interface Leak {
  trace: number;
  kind: LeakKind;
  site: ReportSite;
  leaf: ReportSite | null;
  device: number;
  shape: "linear" | "accelerating" | "retained_graph";
  confidence: number;
  blocks: number;
  bytes: number;
  blocks_per_step: number | null;
  bytes_per_step: number | null;
  bytes_per_step_interval: [number, number] | null;
  period_steps: number | null;
  first_step: number | null;
  last_step: number | null;
  grows_by: "blocks" | "size";
  is_regular: boolean;
  share_of_growth: number | null;
  steps_to_oom: number | null;
  oom_step: { expected: number; earliest: number; latest: number | null } | null;
  freed_siblings: { share: number; site: ReportSite | null };
  backward_calls: ReportSite[];
  members: ReportSite[];
  holders: Holder[] | null;
  holder_coverage: HolderCoverage | null;
}

export interface GrowingSite {
  site: ReportSite;
  device: number;
  memory: LeakKind;
  bytes: number;
  blocks: number;
  bytes_per_step: number | null;
  class: "possible_leak" | "growing_sizes" | "filling" | "towards_oom" | "unknown";
  grows_by: "blocks" | "size" | null;
  events: number | null;
  needs: number | null;
  holders: Holder[] | null;
}

export interface LeakAssessment {
  trace: number;
  status: "assessed" | "partly" | "not_assessed";
  reason: string | null;
  remedy: string | null;
  growth: GrowingSite[];
}

export interface BenignGrowth {
  trace: number;
  rule: string;
  bytes: number;
}

export interface HolderScan {
  trace: number;
  scan: number;
  trigger: string | null;
  time_ns: number;
  step: number | null;
  walk_ns: number | null;
  limit_ns: number | null;
  is_cut: boolean | null;
  failed: string | null;
}

export interface PoolKey {
  stream: number;
  pool: [number, number] | null;
  blocks: "small" | "large";
}

export interface GapCause {
  cause: string;
  bytes: number;
  culprits: SiteBytes[];
  omitted?: Omitted;
  pools?: (PoolKey & { bytes: number })[];
}

export interface PoolRow extends PoolKey {
  is_expandable: boolean;
  segments: number;
  reserved_bytes: number;
  allocated_bytes: number;
  pending_bytes: number;
  free_bytes: number;
  largest_free_bytes: number;
}

export interface Fragmentation {
  trace: number;
  device: number;
  at: {
    time_ns: number;
    step: number | null;
    why: string;
    call?: { owner: string; requested_bytes: number; site: ReportSite };
  };
  reserved_bytes: number;
  live_bytes: number;
  requested_bytes: number | null;
  gap_bytes: number;
  causes: GapCause[];
  pools: PoolRow[];
  common_sizes: (PoolKey & {
    block_bytes: number;
    requests: number;
    free_bytes: number;
    fitting_blocks: number;
  })[];
}

export interface OomGrowth {
  site: ReportSite;
  bytes: number;
  blocks: number;
  held_bytes: number;
  moments: number;
  first_step: number | null;
  pattern: "repeated" | "replaced" | "once" | "each_step";
  holders: Holder[] | null;
}

export interface Oom {
  trace: number;
  device: number;
  time_ns: number;
  step: number | null;
  requested_bytes: number;
  site: ReportSite;
  live_bytes: number;
  reserved_bytes: number;
  device_free_bytes: number | null;
  device_total_bytes: number | null;
  cause: "exceeds_device" | "no_fitting_block" | "device_full" | "other_limit" | "unknown";
  why: string;
  largest_free_block_bytes: number | null;
  remedies: { kind: string; action: string; works: boolean | null }[];
  sites: (SiteBytes & { blocks: number })[];
  omitted?: Omitted;
  unused_causes: GapCause[];
  growth: OomGrowth[];
  unchanged: SiteBytes[];
  recovered: boolean | null;
}
