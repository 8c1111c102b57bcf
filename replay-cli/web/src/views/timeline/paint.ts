/** Draws the chart: grid, stack, lines of reserved and driver memory, and what happened when. */

import { clamp } from "../../widgets/clamp.js";
import { byteTicks, type Axis } from "../../widgets/axis.js";
import { fitLabel } from "../../draw/label_width.js";
import type { Surface } from "../../widgets/canvas.js";
import { formatBytes } from "../../widgets/format.js";
import { themeColor } from "../../shell/theme.js";
import { columnsOf, type ChartData, type PixelColumns, type Range } from "./chart_data.js";
import type { Events, Phase } from "./events.js";
import { paintStack } from "./raster.js";

/** Where the plot is on the canvas, in CSS pixels. */
export interface Plot {
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface ChartStyle {
  axis: Axis;
  range: Range;
  plot: Plot;
  /** Bytes at the top of the plot. */
  top_bytes: number;
  /** Index of the selected band, or -1. */
  selected: number;
  showsReserved: boolean;
  showsDevice: boolean;
  capacity_bytes: number | null;
}

export const LANE_HEIGHT = 15;
const FONT = "11px system-ui, sans-serif";

/** The stack is painted here and then copied over the grid. */
const scratch = document.createElement("canvas");
let image: ImageData | null = null;

export function xOf(style: ChartStyle, time_ns: number): number {
  const { axis, range, plot } = style;
  return plot.left + ((axis.position(time_ns) - range.from) / (range.to - range.from)) * plot.width;
}

export function timeAtX(style: ChartStyle, x: number): number {
  const { axis, range, plot } = style;
  return axis.time(range.from + ((x - plot.left) / plot.width) * (range.to - range.from));
}

function yOf(style: ChartStyle, bytes: number): number {
  return style.plot.top + style.plot.height * (1 - bytes / style.top_bytes);
}

export function drawChart(
  surface: Surface,
  data: ChartData,
  events: Events,
  style: ChartStyle,
): PixelColumns {
  const { context } = surface;
  context.font = FONT;
  drawGrid(surface, style);
  const columns = drawStack(surface, data, style);
  drawSteps(surface, events, style);
  if (style.showsDevice) {
    drawLine(surface, style, columns.device_max, columns.bin, "device", [5, 3]);
  }
  if (style.showsReserved) {
    drawLine(surface, style, columns.reserved_max, columns.bin, "reserved", []);
  }
  drawCapacity(surface, style);
  drawPhases(surface, events.phases, style);
  drawEvents(surface, events, style);
  return columns;
}

function drawGrid({ context }: Surface, style: ChartStyle): void {
  const { plot, axis, range } = style;
  context.fillStyle = themeColor("muted");
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const bytes of byteTicks(style.top_bytes, Math.max(2, Math.floor(plot.height / 60)))) {
    const y = Math.round(yOf(style, bytes)) + 0.5;
    context.strokeStyle = themeColor(bytes === 0 ? "border" : "grid");
    line(context, plot.left, y, plot.left + plot.width, y);
    context.fillText(tickBytes(bytes), plot.left - 8, y);
  }
  context.textBaseline = "top";
  context.textAlign = "center";
  const bottom = plot.top + plot.height;
  const ticks = axis.ticks(range.from, range.to, Math.max(2, Math.floor(plot.width / 90)));
  for (const { at, label } of ticks) {
    const x = plot.left + ((at - range.from) / (range.to - range.from)) * plot.width;
    context.strokeStyle = themeColor("border");
    line(context, Math.round(x) + 0.5, bottom, Math.round(x) + 0.5, bottom + 4);
    const half = context.measureText(label).width / 2;
    const right = plot.left + plot.width;
    context.fillText(label, clamp(x, plot.left + half, right - half), bottom + 7);
  }
}

/** "512 MiB" or "1.5 GiB": ticks are round, so they need no two decimals. */
function tickBytes(bytes: number): string {
  return formatBytes(bytes).replace(/\.00 /, " ").replace(/(\.\d)0 /, "$1 ");
}

function drawStack(surface: Surface, data: ChartData, style: ChartStyle): PixelColumns {
  const { context, ratio } = surface;
  const { plot } = style;
  const width = Math.max(1, Math.round(plot.width * ratio));
  const height = Math.max(1, Math.round(plot.height * ratio));
  if (scratch.width !== width) scratch.width = width;
  if (scratch.height !== height) scratch.height = height;
  const columns = columnsOf(data, style.axis, style.range, width);
  const scratchContext = scratch.getContext("2d");
  if (scratchContext) {
    if (image?.width !== width || image.height !== height) {
      image = scratchContext.createImageData(width, height);
    }
    paintStack(image, columns, {
      bands: data.bands,
      selected: style.selected,
      surface: themeColor("surface"),
      top_bytes: style.top_bytes,
    });
    scratchContext.putImageData(image, 0, 0);
    context.drawImage(scratch, plot.left, plot.top, plot.width, plot.height);
  }
  return columns;
}

function drawLine(
  { context }: Surface,
  style: ChartStyle,
  values: Float64Array,
  bins: Int32Array,
  color: string,
  dash: number[],
): void {
  const { plot } = style;
  const scale = plot.width / values.length;
  context.strokeStyle = themeColor(color);
  context.lineWidth = 1.5;
  context.setLineDash(dash);
  context.beginPath();
  let isDrawing = false;
  let previous = NaN;
  for (let x = 0; x < values.length; x++) {
    if (bins[x] < 0) {
      isDrawing = false;
      continue;
    }
    const y = yOf(style, values[x]);
    const left = plot.left + x * scale;
    if (!isDrawing) context.moveTo(left, y);
    else if (values[x] !== previous) {
      context.lineTo(left, yOf(style, previous));
      context.lineTo(left, y);
    }
    if (x === values.length - 1 || bins[x + 1] < 0) context.lineTo(left + scale, y);
    previous = values[x];
    isDrawing = true;
  }
  context.stroke();
  context.setLineDash([]);
  context.lineWidth = 1;
}

function drawCapacity({ context }: Surface, style: ChartStyle): void {
  const { plot, capacity_bytes } = style;
  if (capacity_bytes === null || capacity_bytes > style.top_bytes) return;
  const y = Math.round(yOf(style, capacity_bytes)) + 0.5;
  context.strokeStyle = context.fillStyle = themeColor("capacity");
  context.setLineDash([2, 3]);
  line(context, plot.left, y, plot.left + plot.width, y);
  context.setLineDash([]);
  context.textAlign = "left";
  context.textBaseline = "top";
  label(context, `memory of the GPU: ${formatBytes(capacity_bytes)}`, plot.left + 6, y + 4);
}

/** Lines at the begins of steps, on the axis of time, while they are far enough apart. */
function drawSteps({ context }: Surface, events: Events, style: ChartStyle): void {
  const { plot, axis } = style;
  if (axis.unit === "step") return;
  const begin = timeAtX(style, plot.left);
  const end = timeAtX(style, plot.left + plot.width);
  const shown = events.steps.filter((time) => time >= begin && time <= end);
  if (shown.length === 0 || plot.width / shown.length < 7) return;
  context.strokeStyle = themeColor("text");
  context.globalAlpha = 0.16;
  for (const time of shown) {
    const x = Math.round(xOf(style, time)) + 0.5;
    line(context, x, plot.top, x, plot.top + plot.height);
  }
  context.globalAlpha = 1;
}

/** One lane per name above the plot. Intervals that are closer than a pixel run together. */
function drawPhases({ context }: Surface, phases: Phase[], style: ChartStyle): void {
  const { plot } = style;
  const right = plot.left + plot.width;
  phases.forEach((phase, lane) => {
    const y = plot.top - (phases.length - lane) * LANE_HEIGHT - 2;
    let open: [number, number] | null = null;
    const flush = () => {
      if (!open) return;
      const [from, to] = open;
      context.fillStyle = phase.color;
      context.globalAlpha = 0.28;
      context.fillRect(from, y, Math.max(1, to - from), LANE_HEIGHT - 3);
      context.globalAlpha = 1;
      context.fillStyle = themeColor("text");
      context.textAlign = "left";
      context.textBaseline = "middle";
      const text = to - from > 24 ? fitLabel(context, phase.name, to - from - 8) : "";
      if (text) context.fillText(text, from + 4, y + (LANE_HEIGHT - 3) / 2 + 0.5);
    };
    for (let i = 0; i < phase.begin_ns.length; i++) {
      const from = Math.max(plot.left, xOf(style, phase.begin_ns[i]));
      const to = Math.min(right, xOf(style, phase.end_ns[i]));
      if (to < plot.left || from > right) continue;
      if (open && from - open[1] < 1.5) open[1] = Math.max(open[1], to);
      else {
        flush();
        open = [from, Math.max(to, from + 1)];
      }
    }
    flush();
  });
}

/** Marks, the peak and out-of-memory errors. Labels that would overlap are left out. */
function drawEvents({ context }: Surface, events: Events, style: ChartStyle): void {
  const { plot } = style;
  const right = plot.left + plot.width;
  const taken: [number, number][] = [];
  for (const moment of events.moments) {
    const x = Math.round(xOf(style, moment.time_ns)) + 0.5;
    if (x < plot.left || x > right) continue;
    const color = themeColor(moment.kind === "oom" ? "critical" : "text");
    context.strokeStyle = context.fillStyle = color;
    context.setLineDash(moment.kind === "oom" ? [] : [3, 3]);
    context.globalAlpha = moment.kind === "oom" ? 1 : 0.6;
    line(context, x, plot.top, x, plot.top + plot.height);
    context.setLineDash([]);
    context.globalAlpha = 1;
    const width = context.measureText(moment.label).width + 8;
    const isLeft = x + width > right;
    const span: [number, number] = isLeft ? [x - width, x] : [x, x + width];
    if (taken.some(([from, to]) => span[0] < to && span[1] > from)) continue;
    taken.push(span);
    context.textAlign = isLeft ? "right" : "left";
    context.textBaseline = "top";
    label(context, moment.label, isLeft ? x - 4 : x + 4, plot.top + 3);
  }
}

/** Text with a halo in the colour of the background, so that it is readable on the stack. */
function label(context: CanvasRenderingContext2D, text: string, x: number, y: number): void {
  context.lineWidth = 4;
  context.lineJoin = "round";
  context.strokeStyle = themeColor("surface");
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
  context.lineWidth = 1;
}

function line(
  context: CanvasRenderingContext2D,
  x1: number,
  y1: number,
  x2: number,
  y2: number,
): void {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}
