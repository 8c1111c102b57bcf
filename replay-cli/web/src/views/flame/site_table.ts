/** The table below the flame graph: totals by call site, or what is new, freed and common. */

import { h, on } from "../../widgets/dom.js";
import { formatByteChange, formatBytes, formatCount, formatShare } from "../../widgets/format.js";
import type { ByStack, TraceModel } from "../../data/model.js";
import { sumBySite } from "../../shell/selection.js";
import type { Figures } from "./figures.js";

/** Most rows; the rest is summed in the last one. */
const MAX_ROWS = 100;

interface Row {
  id: string;
  label: string;
  /** Bytes and blocks of each column group. */
  values: number[];
  order: number;
}

type Pick = (siteId: string) => void;

/** Totals of one moment or window. */
export function siteTable(trace: TraceModel, figures: Figures, pick: Pick): HTMLElement {
  const sums = sumBySite(trace, figures.after);
  const rows = trace.sites.map((site, i) => ({
    id: site.id,
    label: site.label,
    values: [sums.bytes[i], sums.count[i]],
    order: sums.bytes[i],
  }));
  const total = sums.bytes.reduce((a, b) => a + b, 0);
  const cells = ([bytes, count]: number[]): string[] => [
    formatBytes(bytes), total > 0 ? formatShare(bytes, total) : "0%", formatCount(count),
  ];
  return table("Totals by call site", ["Bytes", "Share", "Blocks"], rows, cells, pick);
}

/** New, freed and common blocks of two moments of a trace. */
export function differenceTable(trace: TraceModel, figures: Figures, pick: Pick): HTMLElement {
  const [before, after, fresh] = [figures.before!, figures.after, figures.fresh!]
    .map((totals: ByStack) => sumBySite(trace, totals));
  const rows = trace.sites.map((site, i) => {
    const common = [after.bytes[i] - fresh.bytes[i], after.count[i] - fresh.count[i]];
    const freed = [before.bytes[i] - common[0], before.count[i] - common[1]];
    const change = after.bytes[i] - before.bytes[i];
    return {
      id: site.id,
      label: site.label,
      values: [fresh.bytes[i], fresh.count[i], ...freed, ...common, change],
      order: Math.abs(change) || (fresh.bytes[i] + freed[0]) / 2 ** 40,
    };
  });
  const header = ["New in B", "Blocks", "Freed since A", "Blocks", "In both", "Blocks", "Change"];
  const cells = (v: number[]): string[] => [
    formatBytes(v[0]), formatCount(v[1]), formatBytes(v[2]), formatCount(v[3]),
    formatBytes(v[4]), formatCount(v[5]), formatByteChange(v[6]),
  ];
  return table("New, freed and common blocks by call site", header, rows, cells, pick);
}

/** Bytes and blocks of two traces; their call sites are matched by `site.id`. */
export function traceTable(
  [before, after]: [TraceModel, TraceModel],
  figures: Figures,
  pick: Pick,
): HTMLElement {
  const rows = new Map<string, Row>();
  const add = (trace: TraceModel, totals: ByStack, column: number): void => {
    const sums = sumBySite(trace, totals);
    trace.sites.forEach(({ id, label }, i) => {
      const row = rows.get(id) ?? { id, label, values: [0, 0, 0, 0], order: 0 };
      row.values[column] += sums.bytes[i];
      row.values[column + 1] += sums.count[i];
      row.order = Math.abs(row.values[2] - row.values[0]);
      rows.set(id, row);
    });
  };
  add(before, figures.before!, 0);
  add(after, figures.after, 2);
  const cells = (v: number[]): string[] => [
    formatBytes(v[0]), formatCount(v[1]), formatBytes(v[2]), formatCount(v[3]),
    formatByteChange(v[2] - v[0]),
  ];
  const header = ["A", "Blocks", "B", "Blocks", "Change"];
  return table("Both traces by call site", header, [...rows.values()], cells, pick);
}

function table(
  title: string,
  header: string[],
  rows: Row[],
  cells: (values: number[]) => string[],
  pick: Pick,
): HTMLElement {
  const filled = rows
    .filter((row) => row.values.some((value) => value !== 0))
    .sort((a, b) => b.order - a.order || (a.label < b.label ? -1 : 1));
  const body = h("tbody");
  for (const row of filled.slice(0, MAX_ROWS)) {
    const link = h("button", "link", row.label);
    on(link, "click", () => pick(row.id));
    body.append(h("tr", {}, h("td", {}, link), ...numbers(cells(row.values))));
  }
  const rest = filled.slice(MAX_ROWS);
  if (rest.length > 0) {
    const sums = rest[0].values.map((_, i) => rest.reduce((sum, row) => sum + row.values[i], 0));
    const label = `${formatCount(rest.length)} more call sites`;
    body.append(h("tr", {}, h("td", "muted", label), ...numbers(cells(sums))));
  }
  const head = h("tr", {}, h("th", { scope: "col" }, "Call site"));
  for (const name of header) head.append(h("th", { scope: "col", class: "number" }, name));
  return h("div", "scroll-x",
    h("table", {}, h("caption", {}, title), h("thead", {}, head), body));
}

function numbers(texts: string[]): HTMLElement[] {
  return texts.map((text) => h("td", "number", text));
}
