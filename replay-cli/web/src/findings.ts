/** The findings of the report as the overview shows them: what is wrong, and what to do. */

import { formatByteChange, formatBytes, formatCount, formatNumberOf } from "./widgets/format.js";
import type { Report } from "./data/model.js";
import type { Selection } from "./view.js";

export interface Finding {
  severity: "critical" | "warning" | "info" | "good";
  summary: string;
  /** Further facts, one sentence each. */
  details: string[];
  /** The line of the program, if the page has it. */
  source: string | null;
  /** What helps, one sentence each. */
  advice: string[];
  /** The view with more about it. */
  view: string;
  change: Partial<Selection>;
}

const VIEW_OF_KIND: Record<string, string> = {
  leak: "leaks",
  creep_confirmed: "leaks",
  oom: "oom",
  failed_calls: "oom",
  fragmentation_like: "fragmentation",
  stranded_memory: "fragmentation",
  reserved_overhang: "fragmentation",
  cache_pressure: "fragmentation",
  high_pressure: "timeline",
  transient_spike: "timeline",
  persistent_drift: "timeline",
  hidden_memory: "timeline",
  imbalance: "ranks",
};

type SourceOf = (siteId: string) => string | null;

/** Findings of one trace, most severe first, as in the report. */
export function collectFindings(report: Report, trace: number, sourceOf: SourceOf): Finding[] {
  const isHere = (each: Report) => each.trace === trace;
  const findings: Finding[] = (report.verdicts ?? [])
    .filter((verdict: Report) => isHere(verdict) && verdict.kind !== "incomplete")
    .map((verdict: Report) => fromVerdict(report, verdict, sourceOf));
  for (const assessment of (report.leak_assessment ?? []).filter(isHere)) {
    findings.push(...fromAssessment(assessment, findings.length === 0));
  }
  return findings;
}

function fromVerdict(report: Report, verdict: Report, sourceOf: SourceOf): Finding {
  const site = verdict.evidence?.site?.id ?? null;
  const finding: Finding = {
    severity: verdict.severity,
    summary: verdict.summary,
    details: [],
    source: site === null ? null : sourceOf(site),
    advice: [],
    view: VIEW_OF_KIND[verdict.kind] ?? "run",
    change: site === null ? {} : { site },
  };
  const ofSite = (each: Report) => each.trace === verdict.trace && each.site?.id === site;
  if (verdict.kind === "leak") addLeak(finding, (report.leaks ?? []).find(ofSite));
  if (verdict.kind === "oom") {
    addOom(finding, (report.oom ?? []).find((each: Report) => each.trace === verdict.trace));
  }
  if (verdict.kind === "transient_spike") {
    for (const more of (verdict.evidence?.more_by_site ?? []).slice(0, 3)) {
      const bytes = formatByteChange(more.bytes);
      finding.details.push(`${bytes} at ${more.site.file}:${more.site.line} at the peak.`);
    }
  }
  return finding;
}

function addLeak(finding: Finding, leak: Report | undefined): void {
  if (!leak) return;
  if (leak.first_step !== null && leak.first_step !== undefined) {
    finding.details.push(`Growing since step ${formatCount(leak.first_step)}.`);
  }
  const oom = leak.oom_step;
  if (oom) {
    finding.details.push(
      `Out of memory expected near step ${formatCount(oom.expected)}`
        + ` (between ${formatCount(oom.earliest)} and ${formatCount(oom.latest)}).`,
    );
  }
  if (leak.shape === "retained_graph") {
    finding.details.push("The blocks are those of a retained autograd graph.");
  }
  if (!leak.holders?.length) {
    finding.advice.push("To see what holds these blocks: gpumemtrace run --holders");
  }
}

function addOom(finding: Finding, oom: Report | undefined): void {
  if (!oom) return;
  finding.details.push(sentence(oom.why));
  for (const remedy of oom.remedies ?? []) {
    if (remedy.works === true) finding.advice.push(`Works: ${sentence(remedy.action)}`);
  }
}

/** What was not judged, and growth that is not called a leak. */
function fromAssessment(assessment: Report, isFirst: boolean): Finding[] {
  const findings: Finding[] = [];
  const growth = (assessment.growth ?? []).filter((each: Report) => each.class !== "towards_oom");
  for (const each of growth.slice(0, 3)) {
    findings.push({
      severity: "info",
      summary: `${GROWTH[each.class] ?? "Growth"}: ${formatByteChange(each.bytes)}`
        + ` (${formatNumberOf(each.blocks, "block")}) at ${each.site.file}:${each.site.line}`
        + ` in ${each.site.function}()`,
      details: each.needs
        ? [`It must grow ${formatCount(each.needs)} more times to be called a leak.`]
        : [],
      source: null,
      advice: [],
      view: "leaks",
      change: { site: each.site.id },
    });
  }
  if (assessment.status !== "assessed") {
    const isPartly = assessment.status === "partly";
    findings.push({
      severity: "info",
      summary: isPartly ? "Leaks were assessed in part." : "Leaks could not be assessed.",
      details: assessment.reason ? [sentence(assessment.reason)] : [],
      source: null,
      advice: assessment.remedy ? [sentence(assessment.remedy)] : [],
      view: "leaks",
      change: {},
    });
  } else if (isFirst && findings.length === 0) {
    findings.push({
      severity: "good",
      summary: "No problems found",
      details: ["No leaks, no out-of-memory errors, and no fragmentation that matters."],
      source: null,
      advice: [],
      view: "timeline",
      change: {},
    });
  }
  return findings;
}

const GROWTH: Record<string, string> = {
  possible_leak: "Possible leak",
  growing_sizes: "Growing sizes",
  filling: "A container fills",
  unknown: "Growth, not judged",
};

export function sentence(text: string): string {
  const upper = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(upper) ? upper : `${upper}.`;
}

/** Parts of the memory of a GPU when the driver had handed out most; they sum to `total`. */
export interface DevicePart {
  key: string;
  label: string;
  bytes: number;
}

/**
 * Splits the memory of a device at its driver peak. Reserved memory is split by cause if the report
 * has the causes for the same amounts. Null without a ledger.
 */
export function splitDevice(report: Report, device: Report): DevicePart[] | null {
  const ledger: { owner: string; bytes: number }[] = device.ledger ?? [];
  if (ledger.length === 0) return null;
  const bytesOf = (owner: string) =>
    ledger.filter((each) => each.owner === owner).reduce((sum, each) => sum + each.bytes, 0);
  const live = bytesOf("torch blocks");
  const cache = bytesOf("torch cache");
  const gap = (report.fragmentation ?? []).find((each: Report) =>
    each.trace === device.trace && each.device === device.device
    && each.live_bytes === live && each.reserved_bytes === live + cache);
  const parts: DevicePart[] = [];
  if (gap) {
    const requested = gap.reserved_bytes - gap.gap_bytes;
    parts.push({ key: "live", label: "in tensors (requested)", bytes: requested });
    for (const { cause, bytes } of gap.causes) parts.push({ key: cause, label: cause, bytes });
  } else {
    parts.push({ key: "live", label: "allocated", bytes: live });
    parts.push({ key: "cache", label: "unused reserved", bytes: cache });
  }
  for (const { owner, bytes } of ledger) {
    if (owner !== "torch blocks" && owner !== "torch cache") {
      parts.push({ key: "outside", label: owner, bytes });
    }
  }
  if (device.residual_bytes !== null && device.residual_bytes > 0) {
    const label = "outside recorded calls (contexts, code, rounding)";
    parts.push({ key: "residual", label, bytes: device.residual_bytes });
  }
  const used = parts.reduce((sum, part) => sum + part.bytes, 0);
  if (device.total_bytes !== null && device.total_bytes >= used) {
    parts.push({ key: "free", label: "free on the GPU", bytes: device.total_bytes - used });
  }
  return parts.filter((part) => part.bytes > 0);
}

/** Used by views to name an amount: "931.87 MiB (977,137,664 B)". */
export function exactBytes(bytes: number | null): string {
  return bytes === null ? "unknown" : `${formatBytes(bytes)} (${formatCount(bytes)} B)`;
}
