/** Leaks: whether they could be judged, a card for each, and growth that is not known to leak. */

import { type Child, fill, h } from "../widgets/dom.js";
import { formatCount, formatNumberOf } from "../widgets/format.js";
import type { TraceModel } from "../data/model.js";
import type { BenignGrowth, GrowingSite, Leak, LeakAssessment } from "../data/report_types.js";
import type { Context, View } from "../view.js";
import { describeAssessment, describeBenign, explainGrowingSite, headlineGrowth }
  from "../wording/growth.js";
import { describeTrigger, formatHolder } from "../wording/leaks.js";
import { siteLabel } from "../wording/sites.js";
import { type Card, leakCard } from "./leaks/card.js";
import { CurveLoader } from "./leaks/curve.js";
import { pageSite } from "../wording/sites.js";

export const leaksView: View = {
  id: "leaks",
  title: "Leaks",
  isAvailable: (model) => model.report.leaks != null || model.report.leak_assessment != null,
  mount(root, context) {
    let shown = -1;
    let cards: Card[] = [];
    return {
      update() {
        const { trace } = context.selection();
        if (trace !== shown) {
          shown = trace;
          cards = build(root, trace, context);
        }
        for (const card of cards) card.update();
      },
    };
  },
};

function build(root: HTMLElement, trace: number, context: Context): Card[] {
  const { report, traces } = context.model;
  const model = traces[trace];
  const all: Leak[] = report.leaks ?? [];
  const leaks = all.filter((leak) => leak.trace === trace);
  const assessment: LeakAssessment | undefined = (report.leak_assessment ?? [])
    .find((each: LeakAssessment) => each.trace === trace);
  const loaders = new Map<number, CurveLoader>();
  const cards = leaks.map((leak) => {
    const isAlone = leaks.filter((other) => other.device === leak.device).length === 1;
    return leakCard(leak, isAlone, model, loaderOf(model, leak.device, loaders), context);
  });
  const growth = assessment?.growth ?? [];
  fill(root,
    summary(leaks, assessment, trace, context),
    ...cards.map((card) => card.element),
    growth.length > 0 && h("h2", { class: "section-title" }, "Growth not known to be a leak"),
    ...growth.map((each) => growthCard(each, model)),
    footer(trace, context));
  return cards;
}

function loaderOf(
  trace: TraceModel,
  ordinal: number,
  loaders: Map<number, CurveLoader>,
): CurveLoader | null {
  let loader = loaders.get(ordinal);
  if (!loader) {
    const device = trace.devices.find((each) => each.data.ordinal === ordinal);
    if (!device || device.data.layer !== "torch") return null;
    loaders.set(ordinal, (loader = new CurveLoader(trace, device)));
  }
  return loader;
}

/** Doubts come first: a run that was not judged is not a run without leaks. */
function summary(
  leaks: Leak[],
  assessment: LeakAssessment | undefined,
  trace: number,
  context: Context,
): HTMLElement {
  const basis = describeBasis(trace, context);
  const parts: Child[] = [];
  const isJudged = assessment?.status === "assessed";
  if (!assessment) parts.push(h("p", {}, "It is unknown whether leaks could be judged."));
  else if (leaks.length === 0 || !isJudged) {
    parts.push(h("p", { class: "summary-line" },
      describeAssessment(assessment, basis ? ` in ${basis}` : "")));
    if (assessment.remedy) parts.push(h("p", {}, assessment.remedy));
  }
  if (leaks.length > 0) {
    const count = leaks.length === 1 ? "1 leak" : `${formatCount(leaks.length)} leaks`;
    parts.push(h("p", { class: "summary-line" },
      `${count}${basis ? ` over ${basis}` : ""}, worst first.`));
  }
  const others = otherTraces(trace, context);
  const hasGrowth = (assessment?.growth.length ?? 0) > 0;
  const severity = !isJudged ? "warning"
    : leaks.length > 0 ? "critical" : hasGrowth ? "info" : "good";
  return h("div", { class: "card case", "data-severity": severity }, ...parts, others);
}

/** `25 steps (step boundary: gpumemtrace.step())`; empty without steps. */
function describeBasis(trace: number, context: Context): string {
  const { report, traces } = context.model;
  const model = traces[trace];
  if (!model?.data.steps) return "";
  const boundary: Record<string, string> = {
    marks: "gpumemtrace.step(); step 0 is before the first call",
    nvtx: `NVTX ranges "${report.steps?.range ?? "unknown"}"; step 0 is before the first`,
    optimizer: "optimizer.step()",
    period: "detected from repeating allocations",
  };
  const site = trace === 0 && report.steps?.source === "optimizer" && report.steps.site
    ? ` at ${siteLabel(model, report.steps.site)}`
    : "";
  const source = model.data.steps.source;
  return `${formatNumberOf(model.data.steps.count, "step")} (step boundary: ${boundary[source] ?? source}${site})`;
}

function otherTraces(trace: number, context: Context): HTMLElement | null {
  const counts = new Map<number, number>();
  for (const leak of (context.model.report.leaks ?? []) as Leak[]) {
    if (leak.trace !== trace) counts.set(leak.trace, (counts.get(leak.trace) ?? 0) + 1);
  }
  if (counts.size === 0) return null;
  const links = [...counts].map(([other, count]) => {
    const model = context.model.traces[other];
    const name = model?.data.rank == null ? model?.data.path ?? `trace ${other + 1}`
      : `rank ${model.data.rank}`;
    const button = h("button", { type: "button", class: "link" },
      `${name}: ${formatNumberOf(count, "leak")}`);
    button.addEventListener("click", () => context.select({ trace: other }));
    return button;
  });
  return h("p", { class: "other-traces" }, "Other traces: ", ...links);
}

function growthCard(growth: GrowingSite, trace: TraceModel): HTMLElement {
  const { label, text } = headlineGrowth(growth, siteLabel(trace, growth.site));
  const source = pageSite(trace, growth.site)?.source;
  const holder = growth.holders?.[0];
  return h("article", { class: "card case", "data-severity": "warning" },
    h("p", { class: "badge" }, label),
    h("h2", { class: "case-title" }, text),
    source && h("pre", { class: "source" }, source),
    h("p", {}, explainGrowingSite(growth)),
    holder && h("p", {}, "Held by ", h("code", {}, formatHolder(holder)), "."));
}

/** The last holder scan, and growth that does not count as a leak. */
function footer(trace: number, context: Context): HTMLElement | null {
  const { report } = context.model;
  const parts: Child[] = [];
  const scans = (report.holders ?? []).filter((scan: { trace: number }) => scan.trace === trace);
  const last = scans[scans.length - 1];
  if (last) {
    const step = last.step === null ? "" : `, in step ${formatCount(last.step)}`;
    const end = last.failed ? `; it failed: ${last.failed}`
      : last.is_cut ? "; it reached its time limit, so holders may be missing" : "";
    parts.push(h("p", {}, `Last holder scan: ${describeTrigger(last.trigger)}${step}${end}.`));
  }
  const benign = describeBenign(((report.benign_growth ?? []) as BenignGrowth[])
    .filter((growth) => growth.trace === trace));
  if (benign.length > 0) {
    parts.push(h("p", {}, `Not counted as leaks: ${benign.join(", ")}.`));
  }
  return parts.length > 0 ? h("div", { class: "card muted" }, ...parts) : null;
}
