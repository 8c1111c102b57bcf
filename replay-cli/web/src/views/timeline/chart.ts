/**
 * The large chart: draws on request, at most once a frame, and keeps the shown range of the axis.
 *
 * Two canvases lie on each other. The lower one has the memory, and is drawn when the range or the
 * size changes; the upper one has the selection and the cursor, which move more often.
 */

import { binAt } from "../../data/bins.js";
import { clamp } from "../../widgets/clamp.js";
import type { Axis } from "../../widgets/axis.js";
import { createSurface, fitSurface, type Surface } from "../../widgets/canvas.js";
import { h } from "../../widgets/dom.js";
import { themeColor } from "../../shell/theme.js";
import { largest, type ChartData, type Range } from "./chart_data.js";
import type { Events } from "./events.js";
import { drawChart, LANE_HEIGHT, timeAtX, xOf, type ChartStyle } from "./paint.js";

export interface ChartOptions {
  selected: number;
  showsReserved: boolean;
  showsDevice: boolean;
  capacity_bytes: number | null;
}

export interface SelectedTime {
  from_ns: number | null;
  to_ns: number | null;
}

/** Left of the plot are the bytes, below it the ticks of the axis. */
const MARGIN = { left: 76, right: 10, top: 8, bottom: 26 };
/** A range has at least this many bins. */
const LEAST_BINS = 6;
/** Least shown share of the run: bins may be as narrow as a nanosecond. */
const LEAST_SHARE = 1e-6;

export class Chart {
  readonly element = h("div", "chart");
  readonly surface: Surface;
  style: ChartStyle | null = null;
  data: ChartData | null = null;
  events: Events | null = null;
  /** The moment at the cursor, in nanoseconds. */
  cursor: number | null = null;
  /** Called after the range was changed by zooming or moving. */
  onRange: () => void = () => {};
  readonly #overlay: Surface;
  #axis: Axis | null = null;
  #range: Range = { from: 0, to: 1 };
  #selection: SelectedTime = { from_ns: null, to_ns: null };
  #options: ChartOptions | null = null;
  #height = 360;
  #frame = 0;

  constructor() {
    this.surface = createSurface(this.element, "Memory over the run");
    this.#overlay = createSurface(this.element, "");
    this.#overlay.canvas.removeAttribute("tabindex");
    this.#overlay.canvas.removeAttribute("role");
    this.#overlay.canvas.removeAttribute("aria-label");
    this.#overlay.canvas.setAttribute("aria-hidden", "true");
    this.#overlay.canvas.className = "overlay";
  }

  /** The range of the whole run. */
  get whole(): Range {
    const axis = this.#axis;
    const { data } = this;
    return axis && data ? { from: 0, to: axis.position(data.end_ns) } : { from: 0, to: 1 };
  }

  get isZoomed(): boolean {
    const { from, to } = this.whole;
    return this.#range.from > from + 1e-9 || this.#range.to < to - 1e-9;
  }

  get shown(): Range {
    return this.#range;
  }

  /** The shown range in nanoseconds. */
  get shownTime(): { from_ns: number; to_ns: number } {
    const time = (position: number) => Math.round(this.#axis?.time(position) ?? 0);
    return { from_ns: time(this.#range.from), to_ns: time(this.#range.to) };
  }

  setData(data: ChartData, events: Events, axis: Axis): void {
    this.data = data;
    this.events = events;
    this.#axis = axis;
    this.#range = this.whole;
    this.cursor = null;
  }

  setOptions(options: ChartOptions, selection: SelectedTime, height: number): void {
    this.#options = options;
    this.#selection = selection;
    this.#height = height;
  }

  /** Shows a range, moved and widened so that it lies in the run and has a few bins. */
  setRange(range: Range, isUserAction = true): void {
    const axis = this.#axis;
    const { data, whole } = this;
    if (!axis || !data) return;
    const middle = (range.from + range.to) / 2;
    const time = axis.time(middle);
    const first = Math.max(0, binAt(data.edges, time) - LEAST_BINS / 2);
    const last = Math.min(data.bins, first + LEAST_BINS);
    const least = axis.position(data.edges[last]) - axis.position(data.edges[first]);
    const length = clamp(range.to - range.from, Math.max(least, whole.to * LEAST_SHARE), whole.to);
    const from = clamp(middle - length / 2, 0, whole.to - length);
    this.#range = { from, to: from + length };
    this.draw();
    if (isUserAction) this.onRange();
  }

  zoom(factor: number, around: number): void {
    const { from, to } = this.#range;
    const share = (around - from) / (to - from);
    const length = Math.min((to - from) * factor, this.whole.to);
    this.setRange({ from: around - share * length, to: around + (1 - share) * length });
  }

  pan(distance: number): void {
    this.setRange({ from: this.#range.from + distance, to: this.#range.to + distance });
  }

  /** Draws in the next frame. */
  draw(): void {
    this.#frame ||= requestAnimationFrame(() => this.drawNow());
  }

  drawNow(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const axis = this.#axis;
    const options = this.#options;
    const { data, events } = this;
    if (!data || !events || !axis || !options) return;
    fitSurface(this.surface, this.#height);
    const top = MARGIN.top + events.phases.length * LANE_HEIGHT;
    this.style = {
      axis,
      range: this.#range,
      plot: {
        left: MARGIN.left,
        top,
        width: Math.max(40, this.surface.width - MARGIN.left - MARGIN.right),
        height: Math.max(40, this.#height - top - MARGIN.bottom),
      },
      top_bytes: topBytes(data, options),
      ...options,
    };
    drawChart(this.surface, data, events, this.style);
    this.drawOverlay();
  }

  /** Draws the selection and the cursor. `drag` is a window that is being selected. */
  drawOverlay(drag: SelectedTime | null = null): void {
    const overlay = this.#overlay;
    const { style } = this;
    if (!style) return;
    fitSurface(overlay, this.#height);
    const { context } = overlay;
    const { plot } = style;
    const right = plot.left + plot.width;
    const toPlot = (x: number) => clamp(x, plot.left, right);
    const { from_ns, to_ns } = drag ?? this.#selection;
    if (from_ns !== null) {
      const from = toPlot(xOf(style, from_ns));
      const to = toPlot(xOf(style, to_ns ?? from_ns));
      context.fillStyle = themeColor("selection");
      context.fillRect(from, plot.top, to - from, plot.height);
      context.fillStyle = themeColor("accent");
      for (const x of [from, to]) context.fillRect(Math.round(x) - 1, plot.top, 2, plot.height);
      context.fillRect(Math.min(from, to), plot.top + plot.height, Math.abs(to - from), 3);
    }
    if (this.cursor !== null) {
      const x = Math.round(xOf(style, this.cursor));
      if (x < plot.left || x > right) return;
      context.fillStyle = themeColor("cursor");
      context.fillRect(x, plot.top, 1, plot.height);
    }
  }

  timeAt(x: number): number {
    if (!this.style || !this.data) return 0;
    return clamp(timeAtX(this.style, x), 0, this.data.end_ns);
  }

  xOf(time_ns: number): number {
    return this.style ? xOf(this.style, time_ns) : 0;
  }

  /** Bytes at a height on the canvas. */
  bytesAt(y: number): number {
    if (!this.style) return 0;
    const { plot, top_bytes } = this.style;
    return ((plot.top + plot.height - y) / plot.height) * top_bytes;
  }
}

/** The top of the plot: what is drawn fits. The memory of the GPU is shown if it is near. */
function topBytes(data: ChartData, options: ChartOptions): number {
  const { levels } = data;
  const top = Math.max(
    largest(levels.live_max),
    options.showsReserved ? largest(levels.reserved_max) : 0,
    options.showsDevice ? largest(levels.device_max) : 0,
    1,
  );
  const { capacity_bytes } = options;
  const isNear = capacity_bytes !== null && capacity_bytes >= top && capacity_bytes <= top * 1.35;
  return (isNear ? capacity_bytes : top) * 1.07;
}
