/** Allocated memory of each rank over time: a row for each GPU, a column for each part of the run. */

import { hideTooltip, facts, showTooltip } from "../draw/tooltip.js";
import { onThemeChange, themeColor } from "../shell/theme.js";
import { createSurface, fitSurface, type Surface } from "../widgets/canvas.js";
import { fill, h, liveRegion, on } from "../widgets/dom.js";
import { formatBytes } from "../widgets/format.js";
import { cellFacts, type HeatRow, mergeRows, type Order, ORDERS } from "./heat_rows.js";
import type { RankData, RunData } from "./page_data.js";

/** Height of all rows together, unless there are more ranks than that. */
const HEIGHT = 640;
const MAX_ROW = 22;
const LABEL_WIDTH = 110;
const AXIS_HEIGHT = 20;

/** The bytes of the lightest and of the darkest cell. */
interface ByteRange {
  least_bytes: number;
  most_bytes: number;
}

export function createHeatMap(section: HTMLElement): { show(run: RunData): void; resize(): void } {
  const order = h("select", { "aria-label": "Order of the ranks" });
  fill(order, ...Object.entries(ORDERS).map(([key, { title }]) => h("option", { value: key }, title)));
  const scale = h("select", { "aria-label": "Lightest colour" },
    h("option", { value: "zero" }, "0 B"), h("option", { value: "lowest" }, "the lowest value"));
  const place = h("div", "heat-map");
  const note = h("p", "muted");
  const legend = h("div", "heat-legend");
  const live = liveRegion();
  const surface = createSurface(place, "Allocated memory of each rank over time");
  section.append(
    h("div", "card-head", h("h2", {}, "Allocated memory by rank and time"),
      h("div", {}, h("label", {}, "Colours from ", scale), " ", h("label", {}, "Order by ", order))),
    legend, place, note, live,
  );
  let rows: HeatRow[] = [];
  let ranks: RankData[] = [];
  let range = { least_bytes: 0, most_bytes: 1 };
  let cursor: { row: number; part: number } | null = null;

  const draw = () => {
    if (rows.length > 0) drawRows(surface, rows, range, cursor);
  };
  const measure = () => {
    const known = ranks.flatMap((rank) => rank.live_bytes.filter((bytes) => bytes !== null));
    const most_bytes = ranks.reduce((most, rank) => Math.max(most, rank.peak_live_bytes ?? 0), 1);
    const lowest = known.reduce((least, bytes) => Math.min(least, bytes), most_bytes);
    range = { least_bytes: scale.value === "zero" ? 0 : lowest, most_bytes };
    drawLegend(legend, range);
  };
  const arrange = () => {
    const sorted = [...ranks].sort(ORDERS[order.value as Order].compare);
    rows = mergeRows(sorted);
    cursor = null;
    const merged = rows.length < ranks.length
      ? ` Each row shows the highest of up to ${Math.ceil(ranks.length / rows.length)} GPUs.` : "";
    note.textContent = `Rows are GPUs, columns are equal parts of each recording.${merged}`
      + " Empty cells are unknown. Point at a cell for its numbers; arrow keys move from cell to cell.";
    draw();
  };
  const announce = () => {
    if (cursor) live.textContent = cellFacts(rows[cursor.row], cursor.part).flat().join(" ");
  };

  on(order, "change", arrange);
  on(scale, "change", () => {
    measure();
    draw();
  });
  onThemeChange(draw);
  on(surface.canvas, "mousemove", (event) => {
    const cell = cellAt(surface, rows, event.offsetX, event.offsetY);
    if (!cell) return hideTooltip();
    showTooltip(event.clientX, event.clientY, facts(cellFacts(rows[cell.row], cell.part)));
  });
  on(surface.canvas, "mouseleave", hideTooltip);
  on(surface.canvas, "keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || rows.length === 0) return;
    event.preventDefault();
    const parts = rows[0].live_bytes.length;
    const at = cursor ?? { row: -Math.min(step[0], 0), part: -Math.min(step[1], 0) };
    cursor = {
      row: clamp(cursor ? at.row + step[0] : 0, rows.length),
      part: clamp(cursor ? at.part + step[1] : 0, parts),
    };
    draw();
    announce();
  });

  return {
    show(run) {
      section.hidden = run.ranks === null || run.ranks.length === 0;
      ranks = run.ranks ?? [];
      measure();
      arrange();
    },
    resize: draw,
  };
}

function clamp(value: number, count: number): number {
  return Math.max(0, Math.min(count - 1, value));
}

function rowHeight(count: number): number {
  return Math.max(1, Math.min(MAX_ROW, Math.floor(HEIGHT / Math.max(1, count))));
}

function drawRows(
  surface: Surface,
  rows: HeatRow[],
  { least_bytes, most_bytes }: ByteRange,
  cursor: { row: number; part: number } | null,
): void {
  const height = rowHeight(rows.length);
  fitSurface(surface, height * rows.length + AXIS_HEIGHT);
  const { context, width } = surface;
  const parts = rows[0].live_bytes.length;
  const cell = (width - LABEL_WIDTH) / parts;
  const gap = height > 4 ? 1 : 0;
  context.fillStyle = themeColor("accent");
  rows.forEach((row, index) => row.live_bytes.forEach((bytes, part) => {
    if (bytes === null) return;
    const share = (bytes - least_bytes) / Math.max(1, most_bytes - least_bytes);
    context.globalAlpha = 0.06 + 0.94 * Math.min(1, share);
    context.fillRect(LABEL_WIDTH + part * cell, index * height, Math.ceil(cell), height - gap);
  }));
  context.globalAlpha = 1;
  drawLabels(surface, rows, height, parts * cell);
  if (cursor) {
    context.strokeStyle = themeColor("cursor");
    context.lineWidth = 2;
    context.strokeRect(LABEL_WIDTH + cursor.part * cell, cursor.row * height, cell, Math.max(3, height));
  }
}

function drawLabels({ context }: Surface, rows: HeatRow[], height: number, width: number): void {
  context.fillStyle = themeColor("muted");
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  const every = Math.ceil(14 / height);
  rows.forEach((row, index) => {
    if (index % every > 0) return;
    const middle = Math.max(7, index * height + height / 2);
    context.fillText(row.ranks[0].name, LABEL_WIDTH - 8, middle, LABEL_WIDTH - 10);
  });
  const bottom = rows.length * height + AXIS_HEIGHT / 2;
  context.textAlign = "left";
  context.fillText("start", LABEL_WIDTH, bottom);
  context.textAlign = "right";
  context.fillText("end of the recording", LABEL_WIDTH + width, bottom);
}

function drawLegend(legend: HTMLElement, { least_bytes, most_bytes }: ByteRange): void {
  fill(legend, h("span", {}, formatBytes(least_bytes)), h("span", { class: "heat-scale", "aria-hidden": "true" }),
    h("span", {}, `${formatBytes(most_bytes)}, the highest peak`));
}

function cellAt(
  surface: Surface,
  rows: HeatRow[],
  x: number,
  y: number,
): { row: number; part: number } | null {
  if (rows.length === 0 || x < LABEL_WIDTH) return null;
  const parts = rows[0].live_bytes.length;
  const row = Math.floor(y / rowHeight(rows.length));
  const part = Math.floor((x - LABEL_WIDTH) / ((surface.width - LABEL_WIDTH) / parts));
  return row < rows.length && part < parts ? { row, part } : null;
}
