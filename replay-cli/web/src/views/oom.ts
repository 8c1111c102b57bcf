/** Out of memory: what was requested, why it did not fit, what helps, and what held the memory. */

import { CAUSE_LABELS, GREY, HUES } from "../widgets/colors.js";
import { type Child, fill, h, swatch } from "../widgets/dom.js";
import { exactBytes, sentence } from "../findings.js";
import { formatBytes, formatCount, formatNumberOf } from "../widgets/format.js";
import type { TraceModel } from "../data/model.js";
import type { Oom, ReportSite } from "../data/report_types.js";
import { siteIndex } from "../shell/selection.js";
import type { Context, View } from "../view.js";
import { describeCause } from "../wording/fragmentation.js";
import { formatHolder } from "../wording/leaks.js";
import * as words from "../wording/oom.js";
import { momentText, pageSite, siteLabel } from "../wording/sites.js";
import { vocabularyOf } from "../wording/vocabulary.js";
import { colorOf } from "./fragmentation/waterfall.js";
import { stackList } from "./stack_list.js";
import { percentOf } from "../wording/percent.js";

/** Most kinds of errors with a card, and most call sites in each. */
const MAX_CARDS = 20;
const MAX_SITES = 20;

export const oomView: View = {
  id: "oom",
  title: "Out of memory",
  isAvailable: (model) => (model.report.oom?.length ?? 0) > 0,
  mount(root, context) {
    let shown = -1;
    return {
      update() {
        const { trace } = context.selection();
        if (trace === shown) return;
        shown = trace;
        const all: Oom[] = context.model.report.oom;
        const groups = words.groupOoms(all.filter((oom) => oom.trace === trace));
        const cards = groups.slice(0, MAX_CARDS).map((group) => oomCard(group, trace, context));
        const more = groups.length - cards.length;
        fill(root,
          groups.length === 0
            && h("p", { class: "card" }, "No out-of-memory errors in this trace."),
          ...cards,
          more > 0 && h("p", { class: "card" },
            `${formatNumberOf(more, "other kind")} of errors are in the JSON report.`));
      },
    };
  },
};

function oomCard(group: words.OomGroup, trace: number, context: Context): HTMLElement {
  const oom = group.last;
  const model = context.model.traces[trace];
  const label = (site: ReportSite): string => siteLabel(model, site);
  const source = pageSite(model, oom.site)?.source;
  const vocabulary = vocabularyOf(context.model.report, trace);
  const open = (view: string): void => context.open(view, {
    trace, from_ns: oom.time_ns, to_ns: null,
    device: Math.max(model.devices.findIndex((each) => each.data.ordinal === oom.device), 0),
  });
  const links = [["timeline", "Show in timeline"], ["flame", "Flame graph of this moment"],
    ["fragmentation", "Segment map"]].map(([view, text]) => {
    const button = h("button", { type: "button" }, text);
    button.addEventListener("click", () => open(view));
    return button;
  });
  const severity = oom.recovered ? "warning" : "critical";
  return h("article", { class: "card case", "data-severity": severity },
    h("p", { class: "badge" }, words.describeRecovery(oom.recovered)),
    h("h2", { class: "case-title" },
      `${formatBytes(oom.requested_bytes)} requested at ${label(oom.site)}`),
    h("p", { class: "muted" }, describeMoments(group)),
    source && h("pre", { class: "source" }, source),
    h("p", { class: "oom-why" }, sentence(oom.why)),
    deviceBar(oom),
    requestBars(oom, vocabulary.reserver),
    h("div", { class: "case-columns" },
      h("div", {}, growth(oom, model, label)),
      h("div", {}, remedies(oom))),
    h("div", { class: "case-columns" },
      h("div", {}, heldBy(oom, model, context, label)),
      h("div", {},
        h("h3", {}, "Reserved but unused"),
        h("ul", { class: "oom-list" }, ...oom.unused_causes.map((cause) =>
          h("li", {}, h("span", { class: "number" }, formatBytes(cause.bytes)),
            swatch(colorOf(cause.cause)),
            h("span", {}, describeCause(cause, vocabulary))))),
        oom.unused_causes.length === 0 && h("p", { class: "muted" }, "unknown"))),
    stackList("Requested at", oom.site.stack),
    h("div", { class: "case-links" }, ...links));
}

function describeMoments({ first, last, count }: words.OomGroup): string {
  const at = momentText(last.time_ns, last.step);
  const times = count === 1
    ? at
    : `${formatNumberOf(count, "time")}, ${momentText(first.time_ns, first.step)} to ${at}; `
      + "shown is the last one";
  return `GPU ${last.device}, ${times}`;
}

interface Part {
  label: string;
  bytes: number;
  color: string;
}

/** The whole GPU at that moment; the parts sum up to its size. */
function deviceBar(oom: Oom): HTMLElement | null {
  const total = oom.device_total_bytes;
  const unused = oom.reserved_bytes - oom.live_bytes;
  const parts: Part[] = [{ label: "allocated", bytes: oom.live_bytes, color: HUES[0] }];
  const causes = oom.unused_causes.filter((cause) => cause.cause !== "rounding");
  const rounding = oom.unused_causes.find((cause) => cause.cause === "rounding")?.bytes ?? 0;
  const sum = causes.reduce((bytes, cause) => bytes + cause.bytes, 0);
  if (sum === unused) {
    for (const { cause, bytes } of causes) {
      parts.push({ label: CAUSE_LABELS[cause] ?? cause, bytes, color: colorOf(cause) });
    }
  } else {
    parts.push({ label: "reserved but unused", bytes: unused, color: colorOf("cache") });
  }
  if (total !== null && oom.device_free_bytes !== null) {
    const other = total - oom.reserved_bytes - oom.device_free_bytes;
    if (other > 0) parts.push({ label: "other memory of this process", bytes: other, color: GREY });
    parts.push({ label: "not taken by this process", bytes: oom.device_free_bytes, color: "" });
  }
  const whole = parts.reduce((bytes, part) => bytes + part.bytes, 0);
  const size = total === null ? "of unknown size" : `of ${formatBytes(total)}`;
  const text = parts.map((part) => `${part.label} ${formatBytes(part.bytes)}`).join(", ");
  return h("figure", { class: "oom-device" },
    h("figcaption", {}, h("strong", {}, `GPU ${oom.device} ${size}`),
      rounding > 0 ? h("span", { class: "muted" },
        `; ${formatBytes(rounding)} of the allocated memory is rounding`) : null),
    h("div", { class: "whole-bar tall", role: "img", "aria-label": text },
      ...parts.map((part) => segment(part, whole))),
    h("ul", { class: "band-legend" }, ...parts.map((part) =>
      h("li", { title: exactBytes(part.bytes) },
        part.color ? swatch(part.color) : h("span", { class: "swatch hatched" }),
        `${part.label} `, h("strong", {}, formatBytes(part.bytes)),
        h("span", { class: "muted" }, percentOf(part.bytes, whole))))));
}

function segment({ label, bytes, color }: Part, whole: number): HTMLElement {
  const title = `${label}: ${exactBytes(bytes)}`;
  const element = h("span", { title, class: color ? null : "hatched" });
  element.style.width = `${(bytes / Math.max(whole, 1)) * 100}%`;
  if (color) element.style.background = color;
  return element;
}

/** The request and the free memory that could have served it, on one scale. */
function requestBars(oom: Oom, reserver: string): HTMLElement {
  const rows: [string, number | null, string][] = [
    ["Requested", oom.requested_bytes, "var(--critical)"],
    [`Largest free block of ${reserver}`, oom.largest_free_block_bytes, colorOf("cache")],
    ["Free at the driver", oom.device_free_bytes, "var(--muted)"],
  ];
  const most = Math.max(...rows.map(([, bytes]) => bytes ?? 0), 1);
  return h("div", { class: "request-bars" }, ...rows.flatMap(([name, bytes, color]) => {
    const bar = h("span");
    bar.style.width = `${((bytes ?? 0) / most) * 100}%`;
    bar.style.background = color;
    return [
      h("span", {}, name),
      h("span", { class: "number" }, formatBytes(bytes)),
      h("span", { class: "track", "aria-hidden": "true" }, bytes ? bar : null),
    ];
  }));
}

function growth(
  oom: Oom,
  trace: TraceModel,
  label: (site: ReportSite) => string,
): DocumentFragment {
  const lines = words.listedGrowth(oom);
  const older = words.listedUnchanged(oom);
  const parts: Child[] = [h("h3", {}, "Grew towards it")];
  if (lines.length === 0) parts.push(h("p", { class: "muted" }, "No line grew by much."));
  for (const line of lines) {
    const source = pageSite(trace, line.site)?.source;
    const holder = line.holders?.[0];
    parts.push(h("div", { class: "oom-line" },
      h("p", {}, h("strong", {}, words.growthAmount(line)), ` at ${label(line.site)}`),
      h("p", { class: "muted" }, words.describeGrowthLine(line, oom)),
      source && h("pre", { class: "source" }, source),
      holder && h("p", {}, "Held by ", h("code", {}, formatHolder(holder)), ".")));
  }
  if (older.length > 0) {
    parts.push(h("h3", {}, "Held since before"), h("ul", { class: "oom-list" },
      ...older.map((line) => h("li", {}, h("span", { class: "number" }, formatBytes(line.bytes)),
        h("span", {}, label(line.site))))));
  }
  const fragment = document.createDocumentFragment();
  for (const part of parts) fragment.append(part as Node);
  return fragment;
}

/** Those that help first, those that do not last. */
function remedies(oom: Oom): HTMLElement {
  const order = (works: boolean | null): number => (works === null ? 1 : works ? 0 : 2);
  const sorted = [...oom.remedies].sort((a, b) => order(a.works) - order(b.works));
  const states = ["helps", "untested", "does not help"];
  return h("div", {},
    h("h3", {}, "Remedies"),
    h("ul", { class: "remedies" }, ...sorted.map((remedy) => {
      const state = states[order(remedy.works)];
      return h("li", {},
        h("span", { class: "remedy-state", "data-state": state }, state),
        h("span", {}, sentence(words.shortenPathsIn(remedy.action))));
    })),
    sorted.length === 0 && h("p", { class: "muted" }, "None known."));
}

function heldBy(
  oom: Oom,
  trace: TraceModel,
  context: Context,
  label: (site: ReportSite) => string,
): HTMLElement {
  const body = h("tbody");
  for (const { site, bytes, blocks } of oom.sites.slice(0, MAX_SITES)) {
    const index = siteIndex(trace, site.id);
    const select = (): void => context.select({ site: site.id });
    const name = index === null
      ? h("span", {}, label(site))
      : h("button", { type: "button", class: "link", onclick: select }, label(site));
    body.append(h("tr", {},
      h("td", {}, h("span", { class: "site-cell" }, swatch(context.color(index)), name)),
      h("td", { class: "number" }, formatBytes(bytes)),
      h("td", { class: "number" }, percentOf(bytes, oom.live_bytes)),
      h("td", { class: "number" }, formatCount(blocks))));
  }
  const listed = oom.sites.slice(0, MAX_SITES).reduce((sum, { bytes }) => sum + bytes, 0);
  const rest = oom.live_bytes - listed;
  if (rest > 0) {
    body.append(h("tr", {}, h("td", { class: "muted" }, "other call sites"),
      h("td", { class: "number" }, formatBytes(rest)),
      h("td", { class: "number" }, percentOf(rest, oom.live_bytes)), h("td")));
  }
  return h("div", {},
    h("h3", {}, `Who held the allocated ${formatBytes(oom.live_bytes)}`),
    h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Call site"),
        ...["Bytes", "Share", "Blocks"].map((text) =>
          h("th", { scope: "col", class: "number" }, text)))),
      body));
}
