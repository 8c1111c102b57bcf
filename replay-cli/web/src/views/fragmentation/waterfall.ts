/** Reserved memory at one moment, step by step down to what tensors use, by cause and culprit. */

import { CAUSE_COLORS, CAUSE_LABELS, GREY } from "../../widgets/colors.js";
import { h, swatch } from "../../widgets/dom.js";
import { plainTable } from "../../draw/plain_table.js";
import { formatBytes, formatCount, formatNumberOf } from "../../widgets/format.js";
import type { TraceModel } from "../../data/model.js";
import type { Fragmentation, GapCause } from "../../data/report_types.js";
import { describeCause, formatPool } from "../../wording/fragmentation.js";
import { siteLink } from "../site_link.js";
import type { Vocabulary } from "../../wording/vocabulary.js";
import { percentOf } from "../../wording/percent.js";

const MAX_CULPRITS = 8;

export interface WaterfallContext {
  trace: TraceModel;
  words: Vocabulary;
  pick(siteId: string): void;
}

export function waterfall(moment: Fragmentation, context: WaterfallContext): HTMLElement {
  const { reserved_bytes, gap_bytes, requested_bytes, live_bytes } = moment;
  const used = requested_bytes ?? live_bytes;
  const usedName = requested_bytes === null ? "allocated" : "requested by live blocks";
  const share = percentOf(gap_bytes, reserved_bytes);
  let left = gap_bytes;
  const rows = moment.causes.map((cause) => {
    left -= cause.bytes;
    return causeRow(cause, left, gap_bytes, context);
  });
  return h("div", { class: "waterfall" },
    h("p", { class: "summary-line" },
      `Unused reserved: ${formatBytes(gap_bytes)} of ${formatBytes(reserved_bytes)} (${share})`),
    h("div", { class: "whole-bar", "aria-hidden": "true" },
      part(CAUSE_COLORS.live, used, reserved_bytes),
      ...moment.causes.toReversed().map(({ cause, bytes }) =>
        part(colorOf(cause), bytes, reserved_bytes))),
    h("p", { class: "muted" },
      `${formatBytes(used)} ${usedName}`,
      gap_bytes > 0 && `; below, the full width is the unused ${formatBytes(gap_bytes)}`, "."),
    h("ol", { class: "waterfall-rows" }, ...rows),
    pools(moment),
    commonSizes(moment, context.words));
}

export function colorOf(cause: string): string {
  return CAUSE_COLORS[cause] ?? GREY;
}

function part(color: string, bytes: number, whole: number): HTMLElement {
  const element = h("span");
  element.style.width = `${(bytes / Math.max(whole, 1)) * 100}%`;
  element.style.background = color;
  return element;
}

/** `left`: what remains of the gap after this cause, to the left of its bar. */
function causeRow(
  cause: GapCause,
  left: number,
  gap: number,
  context: WaterfallContext,
): HTMLElement {
  const bar = part(colorOf(cause.cause), cause.bytes, gap);
  bar.style.marginLeft = `min(${(left / Math.max(gap, 1)) * 100}%, 100% - 3px)`;
  const meaning = describeCause(cause, context.words);
  const head = [
    h("span", { class: "waterfall-name" },
      swatch(colorOf(cause.cause)), CAUSE_LABELS[cause.cause] ?? cause.cause),
    h("span", { class: "number" }, formatBytes(cause.bytes)),
    h("span", { class: "number muted" }, percentOf(cause.bytes, gap)),
    h("span", { class: "track", "aria-hidden": "true" }, bar),
  ];
  return h("li", {},
    h("div", { class: "waterfall-head" }, ...head),
    h("p", { class: "muted" }, meaning),
    culprits(cause, context));
}

function culprits(cause: GapCause, { trace, pick }: WaterfallContext): HTMLElement | null {
  if (cause.culprits.length === 0) return null;
  const list = h("ul", { class: "culprits" });
  for (const { site, bytes } of cause.culprits.slice(0, MAX_CULPRITS)) {
    list.append(h("li", {},
      h("span", { class: "number" }, formatBytes(bytes)), siteLink(trace, site, pick)));
  }
  const rest = cause.culprits.slice(MAX_CULPRITS);
  const sites = rest.length + (cause.omitted?.count ?? 0);
  const bytes = rest.reduce((sum, each) => sum + each.bytes, 0) + (cause.omitted?.bytes ?? 0);
  if (sites > 0 && bytes > 0) {
    list.append(h("li", {}, h("span", { class: "number" }, formatBytes(bytes)),
      h("span", { class: "muted" }, formatNumberOf(sites, "other call site"))));
  }
  return list;
}

function pools(moment: Fragmentation): HTMLElement | null {
  if (moment.pools.length === 0) return null;
  const rows = moment.pools.map((pool) => [
    formatPool(pool) + (pool.is_expandable ? ", expandable" : ""),
    formatCount(pool.segments), formatBytes(pool.reserved_bytes),
    formatBytes(pool.allocated_bytes), formatBytes(pool.free_bytes),
    formatBytes(pool.largest_free_bytes),
  ]);
  const header = ["Pool", "Segments", "Reserved", "Allocated", "Free", "Largest free"];
  return h("details", {}, h("summary", {}, `Pools: ${formatCount(rows.length)}`),
    plainTable("Reserved memory by pool", header, rows));
}

function commonSizes(moment: Fragmentation, words: Vocabulary): HTMLElement | null {
  if (moment.common_sizes.length === 0) return null;
  const rows = moment.common_sizes.map((row) => [
    `${formatBytes(row.block_bytes)}, ${formatPool(row)}`, formatCount(row.requests),
    formatCount(row.fitting_blocks), formatBytes(row.fitting_blocks * row.block_bytes),
    formatBytes(row.free_bytes),
  ]);
  const title = `Requests that fit without a new ${words.isMetal ? "Metal heap" : "cudaMalloc"}`;
  const header = ["Size", "Requests in the run", "Fit now", "Their bytes", "Free there"];
  return h("details", {}, h("summary", {}, title), plainTable(title, header, rows));
}
