/** Out-of-memory errors in the words of `gpumemtrace replay --oom`. */

import { formatBytes, formatCount, formatNumberOf } from "../widgets/format.js";
import type { Oom, OomGrowth } from "../data/report_types.js";
import { formatPercent } from "./percent.js";

/** Least share of the allocated memory of a line that is listed after the first one. */
const MIN_SHARE = 0.05;
/** Least share of the first line that grew. */
const MIN_FIRST_SHARE = 0.01;

export function shareOfLive(bytes: number, oom: Oom): number {
  return Math.min(bytes / Math.max(oom.live_bytes, 1), 1);
}

/** The lines that grew and are worth listing. */
export function listedGrowth(oom: Oom): OomGrowth[] {
  return oom.growth.filter((line, i) =>
    shareOfLive(line.bytes, oom)
      >= (i === 0 && oom.cause !== "exceeds_device" ? MIN_FIRST_SHARE : MIN_SHARE));
}

/** The lines that held their blocks before, and are worth listing. */
export function listedUnchanged(oom: Oom): Oom["unchanged"] {
  return (oom.unchanged ?? []).filter((line) => shareOfLive(line.bytes, oom) >= MIN_SHARE);
}

/** `+1.50 GiB`; the memory of each step is no growth. */
export function growthAmount(line: OomGrowth): string {
  return `${line.pattern === "each_step" ? "" : "+"}${formatBytes(line.bytes)}`;
}

/** `76% of allocated memory, 61 blocks, allocated 7 times since step 15`. */
export function describeGrowthLine(line: OomGrowth, oom: Oom): string {
  const share = formatPercent(shareOfLive(line.bytes, oom));
  const first = line.first_step === null ? null : formatCount(line.first_step);
  const since = first === null ? "" : ` since step ${first}`;
  const patterns = {
    repeated: `, allocated ${formatNumberOf(line.moments, "time")}${since}`,
    replaced: `${since}, while older ones were freed`,
    once: `, allocated at one time${first === null ? "" : ` in step ${first}`}`,
    each_step: "; in use in this step, earlier steps freed theirs",
  };
  return `${share} of allocated memory, ${formatNumberOf(line.blocks, "block")}`
    + patterns[line.pattern];
}

export function describeRecovery(recovered: boolean | null): string {
  if (recovered === null) return "Out of memory";
  return recovered ? "Out of memory; the program went on" : "Out of memory; the run ended";
}

/** Equal errors: of one device with the same call site, size, reason and outcome. */
export interface OomGroup {
  first: Oom;
  last: Oom;
  count: number;
}

/** Those that ended the run come first, the others in the order of their first one. */
export function groupOoms(ooms: Oom[]): OomGroup[] {
  const groups = new Map<string, OomGroup>();
  for (const oom of ooms) {
    const { device, requested_bytes, cause, recovered, site } = oom;
    const key = JSON.stringify([device, requested_bytes, cause, recovered, site.id]);
    const group = groups.get(key);
    if (group) {
      group.last = oom;
      group.count++;
    } else {
      groups.set(key, { first: oom, last: oom, count: 1 });
    }
  }
  return [...groups.values()].sort((a, b) =>
    Number(a.first.recovered !== false) - Number(b.first.recovered !== false));
}

/** A sentence of the report with the short paths that the page uses elsewhere. */
export function shortenPathsIn(text: string): string {
  return text.replace(/\/[^\s:;]+\/(?=[^\s/:;]+:\d)/g, (path) => {
    const library = /\/(?:site|dist)-packages\/(.*)$/.exec(path);
    return library ? library[1] : "";
  });
}
