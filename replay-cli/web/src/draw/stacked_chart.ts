/**
 * A chart of amounts that sum up, over the run. Each observation lasts to the next one.
 *
 * A column of pixels shows one observation, that with the largest sum of those in the column, so
 * the parts of a column always belong to one instant. Left and Right move the cursor.
 */

import { clamp } from "../widgets/clamp.js";
import { type Axis, byteTicks } from "../widgets/axis.js";
import { createSurface, fitSurface } from "../widgets/canvas.js";
import { type Child, h, liveRegion, on, swatch } from "../widgets/dom.js";
import { formatBytes } from "../widgets/format.js";
import { themeColor } from "../shell/theme.js";
import { drawAxis, drawMark } from "./time_axis.js";
import { facts, hideTooltip, showTooltip } from "./tooltip.js";

export interface Band {
  label: string;
  color: string;
  values: ArrayLike<number>;
}

export interface StackedContent {
  axis: Axis;
  end_ns: number;
  /** Times of the observations, ascending. */
  times: ArrayLike<number>;
  /** From the bottom up. */
  bands: Band[];
  /** Rows of the tooltip below the bands, such as reserved memory. */
  extra(index: number): [string, string][];
  /** Moments with a mark, such as that of the waterfall. */
  marks: { time_ns: number; isChosen: boolean }[];
  /** Text for screen readers: the main sentence. */
  sentence: string;
}

export interface StackedChart {
  element: HTMLElement;
  show(content: StackedContent): void;
}

const AXIS = 20;
const LEFT = 74;
const TOP = 8;

/** `pick` gets the exact time of an observation. */
export function createStackedChart(height: number, pick: (time_ns: number) => void): StackedChart {
  const element = h("div", "stacked-chart");
  const surface = createSurface(element, "");
  const live = liveRegion();
  element.append(live);
  const { canvas } = surface;
  let content: StackedContent | null = null;
  let cursor = -1;

  const range = (): [number, number] => {
    const { axis, end_ns } = content!;
    return [axis.position(0), axis.position(end_ns)];
  };
  const plotWidth = (): number => Math.max(surface.width - LEFT - 1, 1);
  const toX = (time: number): number => {
    const [from, to] = range();
    const share = (content!.axis.position(time) - from) / Math.max(to - from, 1e-12);
    return LEFT + share * plotWidth();
  };
  const timeAt = (x: number): number => {
    const [from, to] = range();
    const share = clamp((x - LEFT) / plotWidth(), 0, 1);
    return content!.axis.time(from + share * (to - from));
  };

  on(canvas, "pointermove", (event) => {
    if (!content) return;
    const { left } = canvas.getBoundingClientRect();
    cursor = observationAt(content.times, timeAt(event.clientX - left));
    draw();
    if (cursor < 0) hideTooltip();
    else showTooltip(event.clientX, event.clientY, ...describe(content, cursor));
  });
  on(canvas, "pointerleave", () => {
    cursor = -1;
    hideTooltip();
    draw();
  });
  on(canvas, "click", () => {
    if (content && cursor >= 0) pick(content.times[cursor]);
  });
  on(canvas, "keydown", (event) => {
    if (!content || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = content.times.length - 1;
    const next = { ArrowLeft: cursor - 1, ArrowRight: cursor + 1, Home: 0, End: last }[event.key];
    if (next !== undefined) {
      cursor = clamp(next, 0, last);
      live.textContent = sentenceOf(content, cursor);
      draw();
    } else if (event.key === "Enter" && cursor >= 0) {
      pick(content.times[cursor]);
    } else {
      return;
    }
    event.preventDefault();
  });

  function draw(): void {
    if (!content || content.times.length === 0) return;
    fitSurface(surface, height);
    const { context, width } = surface;
    const columns = columnsOf(content, Math.ceil(plotWidth()), timeAt);
    const most = columns.reduce((top, index) => Math.max(top, sumAt(content!, index)), 1);
    const bottom = height - AXIS;
    const scale = (bottom - TOP) / most;
    drawGrid(context, most, { bottom, scale, width });
    const base = new Float64Array(columns.length);
    for (const band of content.bands) {
      context.beginPath();
      context.moveTo(LEFT, bottom);
      const upper = columns.map((index, x) =>
        (index < 0 ? 0 : band.values[index] * scale) + base[x]);
      trace(context, upper, bottom, false);
      trace(context, base, bottom, true);
      context.fillStyle = band.color;
      context.fill();
      base.set(upper);
    }
    drawAxis(context, content.axis, range(), { left: LEFT, bottom, width: plotWidth() });
    for (const mark of content.marks) drawMark(context, toX(mark.time_ns), bottom, mark.isChosen);
    if (cursor >= 0) {
      context.fillStyle = themeColor("cursor");
      context.fillRect(Math.round(toX(content.times[cursor])) - 0.5, TOP, 1, bottom - TOP);
    }
  }

  return {
    element,
    show(next) {
      content = next;
      if (cursor >= next.times.length) cursor = -1;
      canvas.setAttribute("aria-label", next.sentence);
      draw();
    },
  };
}

/** Colours of the bands, in the order of the chart from the top down. */
export function bandLegend(bands: Band[]): HTMLElement {
  const items = [...bands].reverse().map((band) =>
    h("li", {}, swatch(band.color), band.label));
  return h("ul", "band-legend", ...items);
}

function sumAt(content: StackedContent, index: number): number {
  return index < 0 ? 0 : content.bands.reduce((sum, band) => sum + band.values[index], 0);
}

function describe(content: StackedContent, index: number): Child[] {
  const rows = [...content.bands].reverse()
    .filter((band) => band.values[index] > 0)
    .map((band): [string, string] => [band.label, formatBytes(band.values[index])]);
  const moment = content.axis.describe(content.times[index]);
  return [
    h("p", "tooltip-title", moment),
    facts([...rows, ...content.extra(index)]),
  ];
}

function sentenceOf(content: StackedContent, index: number): string {
  const parts = content.bands
    .filter((band) => band.values[index] > 0)
    .map((band) => `${band.label} ${formatBytes(band.values[index])}`);
  const extra = content.extra(index).map(([name, value]) => `${name} ${value}`);
  return `${content.axis.describe(content.times[index])}: ${[...parts, ...extra].join(", ")}`;
}

/** The last observation up to a time; -1 before the first. */
function observationAt(times: ArrayLike<number>, time: number): number {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (times[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The observation that each column of pixels shows; -1 before the first. */
function columnsOf(
  content: StackedContent,
  width: number,
  timeAt: (x: number) => number,
): Int32Array {
  const columns = new Int32Array(width);
  let at = -1;
  for (let x = 0; x < width; x++) {
    const end = timeAt(LEFT + x + 1);
    let best = at;
    while (at + 1 < content.times.length && content.times[at + 1] < end) {
      at++;
      if (best < 0 || sumAt(content, at) > sumAt(content, best)) best = at;
    }
    columns[x] = best;
  }
  return columns;
}

function trace(
  context: CanvasRenderingContext2D,
  heights: ArrayLike<number>,
  bottom: number,
  isBackward: boolean,
): void {
  const size = heights.length;
  for (let i = 0; i < size; i++) {
    const x = isBackward ? size - 1 - i : i;
    const y = bottom - heights[x];
    context.lineTo(LEFT + x + (isBackward ? 1 : 0), y);
    context.lineTo(LEFT + x + (isBackward ? 0 : 1), y);
  }
}

function drawGrid(
  context: CanvasRenderingContext2D,
  most: number,
  { bottom, scale, width }: { bottom: number; scale: number; width: number },
): void {
  context.font = `11px ${themeColor("font")}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const bytes of byteTicks(most, 4)) {
    const y = Math.round(bottom - bytes * scale);
    context.fillStyle = themeColor("grid");
    context.fillRect(LEFT, y, width - LEFT, 1);
    context.fillStyle = themeColor("muted");
    context.fillText(shortBytes(bytes), LEFT - 8, Math.max(y, TOP));
  }
  context.textAlign = "left";
}

/** Ticks are round, so decimals that are 0 are left out. */
export function shortBytes(bytes: number): string {
  return formatBytes(bytes).replace(/\.?0+ /, " ").replace(/^ /, "0 ");
}
