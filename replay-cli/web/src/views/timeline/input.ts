/**
 * Pointer, wheel and keyboard of the large chart.
 *
 * Selected moments snap to the edges of the table of blocks, at which all views are exact, or to
 * the exact moment of the peak or of an error that is near to the pointer.
 */

import { binAt } from "../../data/bins.js";
import { clamp } from "../../widgets/clamp.js";
import { on } from "../../widgets/dom.js";
import type { Chart } from "./chart.js";
import { highestBin } from "./chart_data.js";

export interface InputActions {
  /** Nearest moment at which the data is exact. */
  snap(time_ns: number): number;
  select(from_ns: number, to_ns: number | null): void;
  /** Shows the whole run without a selected time. */
  reset(): void;
  /** The cursor moved. `y` is null if the keyboard moved it. */
  cursorMoved(y: number | null): void;
}

/** A pressed button: where it was pressed, and what moves with it. */
interface Press {
  x: number;
  from_ns: number;
  /** Moves the shown range instead of selecting a window. */
  pans: boolean;
  isDrag: boolean;
  /** Where the pointer was last. */
  last: number;
}

const DRAG_PIXELS = 4;
const SNAP_PIXELS = 5;

export function listenToChart(chart: Chart, actions: InputActions): void {
  const { canvas } = chart.surface;
  let press: Press | null = null;
  /** Where a window begins that the keyboard selects. */
  let anchor: number | null = null;

  const xIn = (event: MouseEvent) => event.clientX - canvas.getBoundingClientRect().left;
  const yIn = (event: MouseEvent) => event.clientY - canvas.getBoundingClientRect().top;

  function snap(x: number): number {
    for (const moment of chart.events?.moments ?? []) {
      if (Math.abs(chart.xOf(moment.time_ns) - x) <= SNAP_PIXELS) return moment.time_ns;
    }
    return actions.snap(chart.timeAt(x));
  }

  on(canvas, "pointerdown", (event) => {
    if (event.button > 1) return;
    const plot = chart.style?.plot;
    const isOnAxis = plot !== undefined && yIn(event) > plot.top + plot.height;
    const pans = event.shiftKey || event.button === 1 || isOnAxis;
    const x = xIn(event);
    press = { x, from_ns: snap(x), pans, isDrag: false, last: x };
    canvas.setPointerCapture(event.pointerId);
  });

  on(canvas, "pointermove", (event) => {
    const x = xIn(event);
    if (press && Math.abs(x - press.x) > DRAG_PIXELS) press.isDrag = true;
    if (press?.isDrag && press.pans && chart.style) {
      const { range, plot } = chart.style;
      chart.pan(((press.last - x) / plot.width) * (range.to - range.from));
      press.last = x;
      return;
    }
    chart.cursor = chart.timeAt(x);
    actions.cursorMoved(yIn(event));
    chart.drawOverlay(press?.isDrag ? { from_ns: press.from_ns, to_ns: snap(x) } : null);
  });

  on(canvas, "pointerup", (event) => {
    const x = xIn(event);
    if (press && !press.isDrag && !press.pans) actions.select(press.from_ns, null);
    else if (press?.isDrag && !press.pans) actions.select(press.from_ns, snap(x));
    press = null;
  });

  on(canvas, "pointercancel", () => {
    press = null;
  });

  on(canvas, "pointerleave", () => {
    if (press) return;
    chart.cursor = null;
    actions.cursorMoved(null);
    chart.drawOverlay();
  });

  on(canvas, "dblclick", () => actions.reset());

  on(canvas, "wheel", (event) => {
    const { style } = chart;
    if (!style) return;
    const pixels = event.deltaMode === 1 ? 16 : 1;
    const length = style.range.to - style.range.from;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      chart.pan((((event.deltaX || event.deltaY) * pixels) / style.plot.width) * length);
    } else if (event.deltaY < 0 || chart.isZoomed) {
      // With the whole run in view, the wheel scrolls the page.
      event.preventDefault();
      const share = (xIn(event) - style.plot.left) / style.plot.width;
      const factor = Math.exp(clamp(event.deltaY * pixels, -240, 240) / 400);
      chart.zoom(factor, style.range.from + clamp(share, 0, 1) * length);
    }
  }, { passive: false });

  on(canvas, "keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !chart.style || !chart.data) return;
    const { style } = chart;
    const { from_ns, to_ns } = chart.shownTime;
    const cursor = chart.cursor ?? (from_ns + to_ns) / 2;
    const around = style.axis.position(cursor);
    let next: number | null = null;
    switch (event.key) {
      case "ArrowLeft": next = neighbour(chart, cursor, -1); break;
      case "ArrowRight": next = neighbour(chart, cursor, 1); break;
      case "PageUp": next = neighbour(chart, cursor, -20); break;
      case "PageDown": next = neighbour(chart, cursor, 20); break;
      case "Home": next = 0; break;
      case "End": next = chart.data.end_ns; break;
      case "+": case "=": chart.zoom(1 / 1.5, around); break;
      case "-": chart.zoom(1.5, around); break;
      case "Enter": actions.select(actions.snap(cursor), null); break;
      default: return;
    }
    event.preventDefault();
    if (next === null) return;
    if (!event.shiftKey) anchor = null;
    else anchor ??= actions.snap(cursor);
    chart.cursor = next;
    keepInView(chart, next);
    actions.cursorMoved(null);
    if (anchor !== null) actions.select(anchor, actions.snap(next));
    chart.drawOverlay();
  });
}

/**
 * The most live bytes of the bins of a pixel that is `distance` pixels away, or of the bin that is
 * `distance` bins away if those are wider.
 */
function neighbour(chart: Chart, time_ns: number, distance: number): number {
  const { data, style } = chart;
  if (!data || !style) return time_ns;
  const pixel = chart.timeAt(chart.xOf(time_ns) + 1) - time_ns;
  const bin = binAt(data.edges, time_ns);
  const target = data.edges[clamp(bin + distance, 0, data.bins)];
  if (distance > 0) {
    const begin = Math.max(target, time_ns + distance * pixel);
    if (begin >= data.edges[data.bins]) return data.end_ns;
    return data.time_ns[highestBin(data, begin, begin + pixel)];
  }
  const begin = Math.min(target, time_ns + distance * pixel);
  if (bin === 0 || begin <= 0) return 0;
  return data.time_ns[highestBin(data, begin, Math.min(begin + pixel, data.edges[bin]))];
}

function keepInView(chart: Chart, time_ns: number): void {
  const { style } = chart;
  if (!style) return;
  const position = style.axis.position(time_ns);
  const { from, to } = chart.shown;
  if (position < from) chart.pan(position - from);
  else if (position > to) chart.pan(position - to);
}
