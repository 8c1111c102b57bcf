/** Leaks in the words of `gpumemtrace replay --leaks`. */

import { formatBytes, formatCount, formatNumberOf } from "../widgets/format.js";
import type { Report } from "../data/model.js";
import type { Holder, HolderScan, Leak, LeakKind } from "../data/report_types.js";
import { formatPercent } from "./percent.js";
import type { Vocabulary } from "./vocabulary.js";

/** No forecast is shown beyond this many steps. */
const FAR_STEPS = 1_000_000;

export const MEMORY: Record<LeakKind, string> = {
  tensors: "",
  device: " of driver memory",
  pinned_host: " of pinned host memory",
  reserved: " of unused reserved memory",
};

/** How certain a leak is, and which memory grows: `Likely leak`. */
export function labelLeak(leak: Leak): string {
  if (leak.kind === "reserved") return "Growing unused reserved memory";
  const memory = MEMORY[leak.kind];
  if (leak.grows_by === "size") return `Growing blocks${memory}`;
  if (leak.is_regular) return `Likely leak${memory}`;
  return `Possible leak${memory} (or a cache that is still filling)`;
}

/** `+4.00 MiB/step (1 block)`, `+8.00 MiB every 4 steps (2 blocks)`. */
export function formatRate(leak: Leak): string {
  if (leak.bytes_per_step === null) {
    const blocks = leak.grows_by === "size" ? 0 : leak.blocks;
    return `+${formatBytes(leak.bytes)} over time${rateBlocks(blocks)}`;
  }
  const blocks = leak.blocks_per_step ?? 0;
  const period = leak.period_steps;
  if (period !== null && period > 1) {
    const bytes = formatBytes(Math.round(leak.bytes_per_step * period));
    return `+${bytes} every ${period} steps${rateBlocks(Math.round(blocks * period))}`;
  }
  const about = leak.is_regular ? "" : "about ";
  return `${about}+${formatBytes(Math.round(leak.bytes_per_step))}/step${rateBlocks(blocks)}`;
}

function rateBlocks(blocks: number): string {
  if (blocks === 0) return "";
  return Number.isInteger(blocks)
    ? ` (${formatNumberOf(blocks, "block")})`
    : ` (${blocks.toFixed(2)} blocks)`;
}

/** The 95% interval of the rate; null if it is unknown. */
export function formatInterval(leak: Leak): string | null {
  const interval = leak.bytes_per_step_interval;
  if (!interval) return null;
  const [least, most] = interval.map((bytes) => formatBytes(Math.round(bytes)));
  return least === most ? `exactly ${least}/step` : `${least} to ${most}/step`;
}

/** `12 blocks (48.00 MiB) live at the end of step 11, growing since step 0`. */
export function describeGrowth(leak: Leak): string {
  const last = leak.last_step === null
    ? "near the end of the run"
    : `at the end of step ${formatCount(leak.last_step)}`;
  const since = leak.first_step === null
    ? ""
    : `, growing since step ${formatCount(leak.first_step)}`;
  const bytes = formatBytes(leak.bytes);
  if (leak.kind === "reserved") return `${bytes} more unused ${last}${since}`;
  if (leak.grows_by === "size") return `${bytes} larger ${last}${since}`;
  return `${formatNumberOf(leak.blocks, "block")} (${bytes}) live ${last}${since}`;
}

/** Empty if there is no forecast. It assumes that all leaks of the device continue. */
export function describeForecast(leak: Leak, isAlone: boolean): string {
  if (leak.steps_to_oom === null) return "";
  if (leak.steps_to_oom > FAR_STEPS) {
    return `No out of memory expected within ${formatCount(FAR_STEPS)} steps.`;
  }
  if (!leak.oom_step) return "";
  const { expected, earliest, latest } = leak.oom_step;
  const range = latest === null
    ? ` (not before ${formatCount(earliest)})`
    : latest === earliest ? "" : ` (between ${formatCount(earliest)} and ${formatCount(latest)})`;
  const together = isAlone ? "" : " if all leaks continue";
  return `Out of memory expected near step ${formatCount(expected)}${range}${together}.`;
}

/** What grows and what happened to the other blocks, one sentence each. */
export function explainLeak(
  leak: Leak,
  words: Vocabulary,
  label: (site: Leak["site"]) => string,
): string[] {
  const sentences: string[] = [];
  if (leak.kind === "device") sentences.push(words.outside);
  if (leak.kind === "pinned_host") {
    sentences.push("This is pinned host memory, not memory of the GPU.");
  }
  if (leak.shape === "retained_graph") {
    const isHeld = leak.holders?.some(({ chain }) => chain.includes("grad_fn chain"));
    const graph = isHeld ? "Retained autograd graph" : "Probably a retained autograd graph";
    const line = leak.site.line ?? "?";
    sentences.push(`${graph}: forward at line ${line}, no backward. `
      + "Its tensors grow in the same steps.");
  }
  sentences.push(describeFate(leak, words, label));
  if (words.isMetal && leak.kind === "tensors") {
    sentences.push("The buffer was created here, but a tensor of another call site may hold it: "
      + "PyTorch reuses buffers.");
  }
  if (leak.shape === "accelerating") sentences.push("Growth accelerates.");
  if (!leak.is_regular) {
    sentences.push("Growth is irregular: a cache that is still filling looks the same.");
  }
  return sentences;
}

function describeFate(
  leak: Leak,
  words: Vocabulary,
  label: (site: Leak["site"]) => string,
): string {
  if (leak.kind === "reserved") {
    return `${words.reserver} reserves more and more memory that stays unused: freed on a stream `
      + "or in a pool that later requests do not use, or in pieces that are too small for them. "
      + `Most of the new ${words.segment}s were requested below this line.`;
  }
  if (leak.grows_by === "size") {
    return leak.kind === "tensors"
      ? "The blocks get larger, not more: a tensor that is extended (torch.cat), or a batch or "
        + "sequence that gets longer."
      : "The blocks get larger, not more: a buffer that is extended.";
  }
  const { share, site } = leak.freed_siblings;
  if (share === 0) return "None of this call site's blocks was freed.";
  const where = site ? `, mostly at ${label(site)}` : "";
  const whose = (leak.members ?? []).length > 1 ? "these call sites'" : "this call site's";
  return `${formatPercent(share)} of ${whose} blocks were freed${where}; these were not.`;
}

/** What `share_of_growth` is a share of. */
export function nameTotalGrowth(leak: Leak): string {
  if (leak.kind === "device") return `the growth of driver memory on GPU ${leak.device}`;
  if (leak.kind === "pinned_host") return "the growth of pinned host memory";
  if (leak.kind === "reserved") {
    return `the growth of unused reserved memory on GPU ${leak.device}`;
  }
  return `GPU ${leak.device}'s growth`;
}

/** `train.kept (list, 34 items) -> tensor -> grad_fn chain`. */
export function formatHolder(holder: Holder): string {
  const what: string[] = holder.type_name === null ? [] : [holder.type_name];
  if (holder.items !== null) {
    what.push(holder.limit_items === null
      ? formatNumberOf(holder.items, "item")
      : `${formatCount(holder.items)} of at most ${formatNumberOf(holder.limit_items, "item")}`);
  }
  const type = what.length > 0 ? ` (${what.join(", ")})` : "";
  return [holder.name + type, ...holder.chain].join(" -> ");
}

const UNRESOLVED: Record<string, string> = {
  no_tensor: "no Python tensor uses them",
  no_name: "no variable leads to their tensors",
  saved_unread: "possibly saved in autograd graphs, which this PyTorch version hides",
  out_of_time: "the scan reached its time limit",
  not_searched: "too many blocks to search",
  not_listed: "held by further names",
  unreadable: "the name in the trace is unreadable",
};

export function explainUnresolved(why: string): string {
  return UNRESOLVED[why] ?? why;
}

const TRIGGERS: Record<string, string> = {
  interval: "during the run",
  return: "when the main function returned",
  exit: "at exit",
  oom: "when memory ran out",
  signal: "on a signal",
  call: "when the program called holders()",
};

export function describeTrigger(trigger: string | null): string {
  return (trigger && TRIGGERS[trigger]) ?? "at an unknown time";
}

/** Why a leak has no holders, or how to learn them; null if neither applies. */
export function explainNoHolders(report: Report, leak: Leak): string | null {
  if (leak.kind !== "tensors") return null;
  const scans: HolderScan[] = (report.holders ?? []).filter(
    (scan: HolderScan) => scan.trace === leak.trace);
  const last = scans.reduce<HolderScan | null>(
    (a, b) => (a === null || b.scan > a.scan ? b : a), null);
  const advice = "Call gpumemtrace.holders() inside your loop.";
  if (!last) {
    const info = report.traces?.[leak.trace];
    const canScan = info?.python != null && info?.torch != null && !info.mode?.includes("metal");
    return canScan ? "To see what holds these blocks: gpumemtrace run --holders" : null;
  }
  return last.trigger === "exit" && last.failed === null
    ? `No references found: the blocks were already freed at exit. ${advice}`
    : `No references found: no holder scan covers these blocks. ${advice}`;
}
