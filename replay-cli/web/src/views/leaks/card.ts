/** One leak as a card: the finding, its numbers, its curve, and where the memory is allocated. */

import { createAxis } from "../../widgets/axis.js";
import { type Child, fill, h, swatch } from "../../widgets/dom.js";
import { createStackedChart } from "../../draw/stacked_chart.js";
import { facts } from "../../draw/tooltip.js";
import { formatBytes, formatCount, formatNumberOf } from "../../widgets/format.js";
import type { TraceModel } from "../../data/model.js";
import type { Leak, ReportSite } from "../../data/report_types.js";
import { siteIndex } from "../../shell/selection.js";
import type { Context } from "../../view.js";
import * as words from "../../wording/leaks.js";
import { formatPercent } from "../../wording/percent.js";
import { pageSite, siteLabel } from "../../wording/sites.js";
import { vocabularyOf } from "../../wording/vocabulary.js";
import { stackList } from "../stack_list.js";
import type { Curve, CurveLoader } from "./curve.js";

const CURVE_HEIGHT = 176;
const MAX_MEMBERS = 8;
const MAX_HOLDERS = 4;

export interface Card {
  element: HTMLElement;
  /** Draws the curve anew, for another theme, width or unit of the axis. */
  update(): void;
}

export function leakCard(
  leak: Leak,
  isAlone: boolean,
  trace: TraceModel,
  loader: CurveLoader | null,
  context: Context,
): Card {
  const { report } = context.model;
  const label = (site: ReportSite): string => siteLabel(trace, site);
  const index = siteIndex(trace, leak.site.id);
  const curve = leakCurve(leak, trace, loader, context);
  const sentences = words.explainLeak(leak, vocabularyOf(report, leak.trace), label);
  const source = pageSite(trace, leak.site)?.source;
  const element = h("article", { class: "card case", "data-severity": "critical" },
    h("p", { class: "badge" }, words.labelLeak(leak)),
    h("h2", { class: "case-title" },
      `${words.formatRate(leak)} at `, index !== null && swatch(context.color(index)),
      ` ${label(leak.site)}`),
    source && h("pre", { class: "source" }, source),
    h("div", { class: "case-columns" },
      h("div", {},
        h("p", {}, `${words.describeGrowth(leak)}. `,
          h("strong", {}, words.describeForecast(leak, isAlone))),
        h("p", {}, sentences.join(" ")),
        numbers(leak),
        holders(leak, context)),
      curve?.element),
    places(leak, label),
    h("div", { class: "case-links" }, ...links(leak, index !== null, context)));
  return { element, update: () => curve?.update() };
}

function numbers(leak: Leak): HTMLElement {
  const interval = words.formatInterval(leak);
  const rows: [string, string][] = [];
  if (interval) rows.push(["Rate, 95% interval", interval]);
  if (leak.share_of_growth !== null) {
    const share = formatPercent(leak.share_of_growth);
    rows.push(["Share", `${share} of ${words.nameTotalGrowth(leak)}`]);
  }
  rows.push(["Confidence", leak.confidence.toFixed(2)]);
  return facts(rows);
}

function holders(leak: Leak, context: Context): HTMLElement | null {
  const coverage = leak.holder_coverage;
  if (!leak.holders || !coverage) {
    const why = words.explainNoHolders(context.model.report, leak);
    return why === null ? null : h("p", { class: "muted" }, why);
  }
  const list = h("ul", { class: "holders" });
  const all = formatNumberOf(coverage.blocks, "block");
  for (const holder of leak.holders.slice(0, MAX_HOLDERS)) {
    list.append(h("li", {}, "Held by ", h("code", {}, words.formatHolder(holder)),
      `: ${formatCount(holder.blocks)} of ${all}`));
  }
  const rest = leak.holders.slice(MAX_HOLDERS);
  if (rest.length > 0) {
    const blocks = formatNumberOf(rest.reduce((sum, { blocks }) => sum + blocks, 0), "block");
    list.append(h("li", {}, `Held by ${formatNumberOf(rest.length, "other name")}: ${blocks}`));
  }
  if (coverage.unresolved.length > 0) {
    const reasons = coverage.unresolved.map(({ blocks, why }) =>
      `${formatNumberOf(blocks, "block")} (${words.explainUnresolved(why)})`);
    list.append(h("li", {}, `Holder unknown: ${reasons.join(", ")}`));
  }
  return list;
}

function places(leak: Leak, label: (site: ReportSite) => string): HTMLElement {
  const verb = leak.kind === "reserved" ? "Requested" : "Allocated";
  const members = leak.members ?? [];
  const parts: Child[] = [];
  if (leak.leaf) {
    parts.push(h("p", {}, "Innermost call site: ", h("code", {}, label(leak.leaf)),
      ", shared with code that frees its blocks."));
  }
  for (const call of leak.backward_calls ?? []) {
    parts.push(h("p", {}, "Allocated by autograd threads during backward() at ",
      h("code", {}, label(call)), "."));
  }
  if (members.length > 0) {
    const list = h("ul", { class: "members" },
      ...members.slice(0, MAX_MEMBERS).map((site) => h("li", { class: "mono" }, label(site))));
    const more = members.length - MAX_MEMBERS;
    if (more > 0) list.append(h("li", {}, `${formatCount(more)} more`));
    parts.push(h("details", {},
      h("summary", {}, `${verb} at ${formatNumberOf(members.length, "call site")}`), list));
  }
  const mostly = leak.kind === "reserved"
    ? "Mostly requested at"
    : leak.shape === "retained_graph" ? "Mostly allocated at" : "Allocated at";
  parts.push(stackList(mostly, leak.site.stack));
  return h("div", { class: "places" }, ...parts);
}

function links(leak: Leak, isKnown: boolean, context: Context): HTMLElement[] {
  const button = (text: string, click: () => void): HTMLElement => {
    const element = h("button", { type: "button" }, text);
    element.addEventListener("click", click);
    return element;
  };
  const site = leak.site.id;
  const options = { ...context.selection().options, "flame.mode": "kept" };
  const change = { trace: leak.trace, site: isKnown ? site : null };
  return [
    button("Show in timeline", () => context.open("timeline", change)),
    button("Show what is kept in the flame graph",
      () => context.open("flame", { ...change, options })),
  ];
}

/** Null for memory that is not in the table of blocks, or at sites that the page lacks. */
function leakCurve(
  leak: Leak,
  trace: TraceModel,
  loader: CurveLoader | null,
  context: Context,
): Card | null {
  if (leak.kind !== "tensors" || !loader) return null;
  const members = leak.members ?? [];
  const wanted = members.length > 0 ? members : [leak.leaf ?? leak.site];
  const indices = wanted.map((site) => siteIndex(trace, site.id)).filter((i) => i !== null);
  if (indices.length === 0) return null;
  const whose = wanted.length > 1
    ? `its ${formatNumberOf(wanted.length, "call site")}`
    : "this call site";
  const missing = wanted.length - indices.length;
  const caption = `Live bytes of ${whose}`
    + (missing > 0 ? `, without ${formatCount(missing)} that the page lacks` : "");
  const chart = createStackedChart(CURVE_HEIGHT, (time_ns) =>
    context.open("flame", { trace: leak.trace, from_ns: time_ns, to_ns: null }));
  const place = h("div", {}, h("p", { class: "muted" }, "Computing..."));
  const element = h("figure", { class: "leak-curve" },
    h("figcaption", { class: "muted" }, caption), place);
  let curve: Curve | null = null;
  const update = (): void => {
    if (!curve) return;
    chart.show({
      axis: createAxis(trace, context.selection().axis),
      end_ns: trace.data.end_ns,
      times: curve.times,
      bands: [{
        label: "live", color: context.color(siteIndex(trace, leak.site.id) ?? indices[0]),
        values: curve.bytes,
      }],
      extra: () => [],
      marks: [],
      sentence: `${caption}: from ${formatBytes(curve.bytes[0])} `
        + `to ${formatBytes(curve.bytes[curve.bytes.length - 1])}`,
    });
  };
  loader.load(new Set(indices), (loaded) => {
    curve = loaded;
    fill(place, chart.element);
    update();
  });
  return { element, update };
}
