/** The strip that shows the whole run, and which part of it the large chart shows. */

import { clamp } from "../../widgets/clamp.js";
import { createSurface, fitSurface } from "../../widgets/canvas.js";
import { h, on } from "../../widgets/dom.js";
import { themeColor } from "../../shell/theme.js";
import type { Chart } from "./chart.js";
import { columnsOf, largest, type Range } from "./chart_data.js";

const HEIGHT = 46;
const LEFT = 76;
const RIGHT = 10;
const HANDLE_PIXELS = 7;

export interface Brush {
  element: HTMLElement;
  draw(): void;
}

export function createBrush(chart: Chart): Brush {
  const element = h("div", "brush");
  const surface = createSurface(element, "The whole run, and the part shown above");
  const { canvas, context } = surface;
  let drag: { mode: "move" | "from" | "to" | "new"; position: number; range: Range } | null = null;

  const plotWidth = () => Math.max(40, surface.width - LEFT - RIGHT);
  const xOf = (position: number) => LEFT + (position / chart.whole.to) * plotWidth();
  const positionAt = (event: MouseEvent) => {
    const x = event.clientX - canvas.getBoundingClientRect().left - LEFT;
    return clamp(x / plotWidth(), 0, 1) * chart.whole.to;
  };

  function draw(): void {
    fitSurface(surface, HEIGHT);
    const { data, style } = chart;
    if (!data || !style) return;
    const width = Math.round(plotWidth());
    const columns = columnsOf(data, style.axis, chart.whole, width);
    const top = Math.max(largest(data.levels.live_max), 1);
    context.fillStyle = themeColor("muted");
    context.globalAlpha = 0.55;
    for (let x = 0; x < width; x++) {
      const height = (columns.live_max[x] / top) * (HEIGHT - 6);
      context.fillRect(LEFT + x, HEIGHT - 1 - height, 1, height);
    }
    context.globalAlpha = 1;
    const from = xOf(chart.shown.from);
    const to = xOf(chart.shown.to);
    context.fillStyle = themeColor("page");
    context.globalAlpha = 0.72;
    context.fillRect(LEFT, 0, from - LEFT, HEIGHT);
    context.fillRect(to, 0, LEFT + width - to, HEIGHT);
    context.globalAlpha = 1;
    context.strokeStyle = themeColor(chart.isZoomed ? "accent" : "border");
    context.strokeRect(from + 0.5, 0.5, Math.max(2, to - from - 1), HEIGHT - 1);
    if (!chart.isZoomed) return;
    context.fillStyle = themeColor("accent");
    for (const x of [from, to]) {
      context.beginPath();
      context.roundRect(x - 3, HEIGHT / 2 - 9, 6, 18, 3);
      context.fill();
    }
  }

  function modeAt(event: MouseEvent): "move" | "from" | "to" | "new" {
    const x = event.clientX - canvas.getBoundingClientRect().left;
    if (!chart.isZoomed) return "new";
    const from = xOf(chart.shown.from);
    const to = xOf(chart.shown.to);
    if (Math.abs(x - from) <= HANDLE_PIXELS) return "from";
    if (Math.abs(x - to) <= HANDLE_PIXELS) return "to";
    return x > from && x < to ? "move" : "new";
  }

  on(canvas, "pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { mode: modeAt(event), position: positionAt(event), range: chart.shown };
    canvas.setPointerCapture(event.pointerId);
  });

  on(canvas, "pointermove", (event) => {
    if (!drag) {
      const mode = modeAt(event);
      canvas.style.cursor = mode === "new" ? "crosshair" : mode === "move" ? "grab" : "ew-resize";
      return;
    }
    const at = positionAt(event);
    const { from, to } = drag.range;
    const distance = at - drag.position;
    const range = drag.mode === "move" ? { from: from + distance, to: to + distance }
      : drag.mode === "from" ? { from: at, to }
      : drag.mode === "to" ? { from, to: at }
      : { from: drag.position, to: at };
    if (drag.mode === "new" && Math.abs(distance) < chart.whole.to / 200) return;
    chart.setRange({ from: Math.min(range.from, range.to), to: Math.max(range.from, range.to) });
  });

  on(canvas, "pointerup", () => (drag = null));
  on(canvas, "pointercancel", () => (drag = null));
  on(canvas, "dblclick", () => chart.setRange(chart.whole));

  on(canvas, "keydown", (event) => {
    const { from, to } = chart.shown;
    if (event.key === "ArrowLeft") chart.pan((from - to) / 10);
    else if (event.key === "ArrowRight") chart.pan((to - from) / 10);
    else if (event.key === "+" || event.key === "=") chart.zoom(1 / 1.5, (from + to) / 2);
    else if (event.key === "-") chart.zoom(1.5, (from + to) / 2);
    else if (event.key === "Home") chart.pan(-from);
    else if (event.key === "End") chart.pan(chart.whole.to - to);
    else return;
    event.preventDefault();
  });

  return { element, draw };
}
