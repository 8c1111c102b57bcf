/** The numbers of the shown part of the chart as a table and as CSV. */

import { binsBetween } from "../../data/bins.js";
import { formatBytes } from "../../widgets/format.js";
import { fill, h } from "../../widgets/dom.js";
import { toCsv } from "../../widgets/download.js";
import type { Axis } from "../../widgets/axis.js";
import { levelsBetween, type ChartData } from "./chart_data.js";

const ROWS = 60;

/** Replaces the content of `parent` by a table of the least and most bytes in equal parts. */
export function fillDataTable(
  parent: HTMLElement,
  data: ChartData,
  axis: Axis,
  from_ns: number,
  to_ns: number,
): void {
  const { edges } = data.levels;
  const [first, end_bin] = binsBetween(edges, from_ns, to_ns);
  const last = end_bin + 1;
  const bins = Math.max(1, Math.ceil((last - first) / ROWS));
  const rows: HTMLElement[] = [];
  for (let bin = first; bin < last; bin += bins) {
    const begin = edges[bin];
    const end = edges[Math.min(bin + bins, last)];
    const level = levelsBetween(data.levels, begin, end);
    rows.push(h(
      "tr",
      {},
      h("th", { scope: "row" }, axis.describe(Math.max(0, begin))),
      ...[level.live_min, level.live_max, level.reserved_max, level.device_max].map((bytes) =>
        h("td", "number", formatBytes(bytes))),
    ));
  }
  const heads = ["From", "Allocated, least", "Allocated, most", "Reserved, most", "Driver, most"];
  const head = heads.map((text, index) =>
    h("th", { scope: "col", class: index ? "number" : null }, text));
  const caption = h("caption", "visually-hidden", "Memory in the shown part of the run");
  const thead = h("thead", {}, h("tr", {}, ...head));
  fill(parent, h("table", {}, caption, thead, h("tbody", {}, ...rows)));
}

/** One line per bin: the instant of its most live bytes, and the bytes of each band then. */
export function timelineCsv(data: ChartData): string {
  const rows = Array.from(data.live, (live, bin) => [
    data.time_ns[bin],
    live,
    ...data.bands.map((band) => band.values[bin]),
  ]);
  return toCsv(["time_ns", "live_bytes", ...data.bands.map((band) => band.label)], rows);
}
