/** Growth that is not known to be a leak, in the words of `gpumemtrace replay --leaks`. */

import { formatBytes, formatCount, formatNumberOf } from "../widgets/format.js";
import type { GrowingSite, LeakAssessment } from "../data/report_types.js";
import { MEMORY } from "./leaks.js";

/** The first words of a run without leaks: what the assessment allows to claim. */
export function describeAssessment(assessment: LeakAssessment, place: string): string {
  const reason = assessment.reason ?? "the reason is unknown";
  if (assessment.status === "assessed") return `No leaks detected${place}.`;
  if (assessment.status === "partly") return `Leaks were judged in part${place}: ${reason}.`;
  return `Leaks were not judged: ${reason}.`;
}

/** `Possible leak: +24.00 MiB (5 blocks) at train.py:8 in keep()`, in two parts. */
export function headlineGrowth(growth: GrowingSite, site: string): { label: string; text: string } {
  const labels = {
    possible_leak: "Possible leak",
    growing_sizes: growth.grows_by === "blocks" ? "More blocks" : "Growing sizes",
    filling: "Filling",
    towards_oom: "Grew until out of memory",
    unknown: "Growth",
  };
  const gpu = growth.device === 0 ? "" : ` on GPU ${growth.device}`;
  const blocks = growth.class === "growing_sizes"
    ? ""
    : ` (${formatNumberOf(growth.blocks, "block")})`;
  const amount = `+${formatBytes(growth.bytes)}${MEMORY[growth.memory]}`;
  return { label: labels[growth.class], text: `${amount}${blocks}${gpu} at ${site}` };
}

/** What is known of growth, and what would tell more. */
export function explainGrowingSite(growth: GrowingSite): string {
  switch (growth.class) {
    case "possible_leak":
      return `It grew ${formatNumberOf(growth.events ?? 0, "time")} and was not freed; `
        + `${formatCount(growth.needs ?? 1)} more are needed to call it a leak.`;
    case "growing_sizes": {
      const rate = growth.bytes_per_step === null
        ? ""
        : `+${formatBytes(Math.round(growth.bytes_per_step))}/step. `;
      return rate + explainSizes(growth);
    }
    case "filling":
      return "It is kept in a container with a limit that is not reached yet.";
    case "towards_oom":
      return "It was still allocated when memory ran out.";
    default:
      return "It is in a part of the run that was not judged.";
  }
}

function explainSizes(growth: GrowingSite): string {
  if (growth.memory === "reserved") {
    return "Free blocks do not fit the next request, so PyTorch reserves more: requests that get "
      + "larger, or free blocks of another stream or pool.";
  }
  if (growth.grows_by === "blocks") {
    return "Each step leaves more blocks than the one before, and later steps free them: a queue "
      + "that gets longer, or longer episodes.";
  }
  return "Blocks are freed and allocated again, larger: a history that is extended (torch.cat), "
    + "or longer inputs.";
}

const BENIGN: Record<string, string> = {
  warm_up: "allocated in the first steps",
  one_off: "that grew only a few times",
  one_model_call: "kept by one call of a model",
  saturating: "in caches that fill up or slow down",
  ratchet: "in buffers that follow the longest batch so far",
  optimizer_state: "of optimizer state",
  library_workspace: "of cuBLAS workspaces",
  too_early: "that grew for too few steps to judge",
};

/** `43.50 MiB of optimizer state (1 call site)`, by rule, most bytes first. */
export function describeBenign(rows: { rule: string; bytes: number }[]): string[] {
  const sums = new Map<string, { bytes: number; sites: number }>();
  for (const { rule, bytes } of rows) {
    const sum = sums.get(rule) ?? { bytes: 0, sites: 0 };
    sums.set(rule, { bytes: sum.bytes + bytes, sites: sum.sites + 1 });
  }
  return [...sums]
    .sort((a, b) => b[1].bytes - a[1].bytes)
    .map(([rule, { bytes, sites }]) =>
      `${formatBytes(bytes)} ${BENIGN[rule] ?? rule} (${formatNumberOf(sites, "call site")})`);
}
