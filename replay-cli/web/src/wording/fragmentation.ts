/** Causes and moments of unused reserved memory, in the words of `replay --fragmentation`. */

import { formatBytes } from "../widgets/format.js";
import type { Fragmentation, GapCause, PoolKey } from "../data/report_types.js";
import type { Vocabulary } from "./vocabulary.js";

/** A cause, and what returns the memory. */
export function describeCause(cause: GapCause, words: Vocabulary): string {
  const { segment, block, emptyCache } = words;
  switch (cause.cause) {
    case "pinned":
      return `free, but in ${segment}s pinned by live ${block}s`;
    case "cache":
      return `cached in fully free ${segment}s; ${emptyCache} returns it`;
    case "rounding":
      return `rounding: ${block}s are larger than requested`;
    case "pending_free":
      return "freed, waiting for another stream (record_stream)";
    case "stranded_stream":
      return `free, but only for other streams: in ${segment}s pinned by live ${block}s there`;
    case "stranded_pool":
      return describeStranded(cause.pools ?? [], words);
    default:
      return words.isMetal
        ? "unexplained: the positions of buffers in their heaps are unknown"
        : "unexplained: the allocator's segments are unknown";
  }
}

/** The pools in which memory is stranded, and what returns it. */
function describeStranded(pools: (PoolKey & { bytes: number })[], words: Vocabulary): string {
  const kinds = [
    "CUDA graphs", "MemPools or shared graph pools",
    `small ${words.block}s (up to 1 MiB)`, `large ${words.block}s (above 1 MiB)`,
  ];
  const sums = [0, 0, 0, 0];
  for (const { pool, blocks, bytes } of pools) {
    const isPrivate = pool !== null && (pool[0] !== 0 || pool[1] !== 0);
    const kind = isPrivate ? (pool[0] !== 0 ? 0 : 1) : blocks === "small" ? 2 : 3;
    sums[kind] += bytes;
  }
  const found = kinds.map((kind, i) => ({ kind, bytes: sums[i] })).filter((each) => each.bytes > 0);
  const returned = found.length > 1 ? "their memory" : "it";
  const advice = sums[0] + sums[1] > 0
    ? `; delete these graphs and pools, then ${words.emptyCache} returns ${returned}`
    : "";
  if (found.length === 0) return "free, but only for another pool";
  if (found.length === 1) return `free, but only for ${found[0].kind}${advice}`;
  const named = found.map(({ kind, bytes }) => `${kind}: ${formatBytes(bytes)}`).join(", ");
  return `free, but only for other pools (${named})${advice}`;
}

const MOMENTS: Record<string, string> = {
  peak_reserved: "when reserved memory was highest",
  largest_gap: "when unused reserved memory was highest",
  last_step: "at the end of the last step",
  oom: "when memory ran out",
  at: "at the requested moment",
  end: "when the program finished",
};

export function describeGapMoment({ why, call }: Fragmentation["at"]): string {
  if (why !== "failed_call") return MOMENTS[why] ?? why;
  return call
    ? `when the driver refused ${formatBytes(call.requested_bytes)} to ${call.owner}`
    : "when the driver refused a request of another library";
}

/** `large blocks`, `small blocks, stream 0x7f..., pool 0:1`. */
export function formatPool({ blocks, stream, pool }: PoolKey): string {
  const onStream = stream === 0 ? "" : `, stream 0x${stream.toString(16)}`;
  const inPool = pool === null || (pool[0] === 0 && pool[1] === 0)
    ? ""
    : `, pool ${pool[0]}:${pool[1]}`;
  return `${blocks} blocks${onStream}${inPool}`;
}
