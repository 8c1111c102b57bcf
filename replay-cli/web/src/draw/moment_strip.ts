/**
 * A strip of memory over the run on which a moment or a window is picked.
 *
 * A click picks a moment, a drag a window. Left and Right move the moment, or the end of the
 * window, by one edge of the table of blocks; with Shift, they begin a window.
 */

import { firstAtLeast } from "../data/block_table.js";
import { clamp } from "../widgets/clamp.js";
import type { Axis } from "../widgets/axis.js";
import { createSurface, fitSurface } from "../widgets/canvas.js";
import { h, on } from "../widgets/dom.js";
import { formatBytes } from "../widgets/format.js";
import { themeColor } from "../shell/theme.js";
import { drawAxis, drawMark } from "./time_axis.js";

export interface StripContent {
  end_ns: number;
  /** Begins of the bins, and the end of the last. */
  bin_edges: Float64Array;
  /** Upper bounds of memory, one for each bin. */
  values: Float64Array;
  /** Moments between which an arrow key moves, ascending. */
  key_edges: Float64Array;
  /** Second, fainter curve, such as reserved memory. */
  behind: Float64Array | null;
  axis: Axis;
  /** Selected moment, or begin and end of a window; empty for none. */
  selected: number[];
  /** Exact moments that are shown. */
  shown: number[];
  /** The begin of the text for screen readers. */
  sentence: string;
}

export interface Strip {
  element: HTMLElement;
  show(content: StripContent): void;
}

const HEIGHT = 84;
const AXIS = 18;
const TOP = 6;
/** Pointer movement in pixels from which a click is a drag. */
const DRAG = 4;

/** `pick` gets a moment and null, or the ends of a window. */
export function createMomentStrip(
  pick: (from_ns: number, to_ns: number | null) => void,
): Strip {
  const element = h("div", "moment-strip");
  const surface = createSurface(element, "Memory over the run");
  const { canvas } = surface;
  let content: StripContent | null = null;
  let ends: [number, number];
  let drag: { from: number; to: number } | null = null;

  const toX = (time: number): number => {
    const [from, to] = ends;
    return ((content!.axis.position(time) - from) / Math.max(to - from, 1e-12)) * surface.width;
  };
  const toTime = (event: PointerEvent): number => {
    const { left, width } = canvas.getBoundingClientRect();
    const share = clamp((event.clientX - left) / width, 0, 1);
    const [from, to] = ends;
    return Math.round(content!.axis.time(from + share * (to - from)));
  };

  on(canvas, "pointerdown", (event) => {
    if (!content || event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    const time = toTime(event);
    drag = { from: time, to: time };
  });
  on(canvas, "pointermove", (event) => {
    if (!drag) return;
    drag.to = toTime(event);
    draw();
  });
  on(canvas, "pointerup", () => {
    if (!drag) return;
    const { from, to } = drag;
    drag = null;
    if (Math.abs(toX(to) - toX(from)) < DRAG) pick(to, null);
    else pick(Math.min(from, to), Math.max(from, to));
  });
  on(canvas, "pointercancel", () => {
    drag = null;
    draw();
  });
  on(canvas, "keydown", (event) => {
    if (!content || event.ctrlKey || event.metaKey || event.altKey) return;
    const moved = moveByKey(content, event);
    if (!moved) return;
    event.preventDefault();
    pick(moved[0], moved[1]);
  });

  function draw(): void {
    if (!content) return;
    fitSurface(surface, HEIGHT);
    const { context, width } = surface;
    const most = content.values.reduce((a, b) => Math.max(a, b), 0);
    const behind = content.behind?.reduce((a, b) => Math.max(a, b), 0) ?? 0;
    const bottom = HEIGHT - AXIS;
    const scale = (bottom - TOP) / Math.max(most, behind, 1);
    if (content.behind) {
      fillBelow(context, tracePath(content, content.behind, { toX, scale, bottom }), "raised");
    }
    const path = tracePath(content, content.values, { toX, scale, bottom });
    fillBelow(context, path, "accent-soft");
    context.strokeStyle = themeColor("accent");
    context.lineWidth = 1.25;
    context.stroke(path.line);
    const picked = drag ? [drag.from, drag.to] : content.selected;
    if (picked.length === 2) {
      const [x1, x2] = picked.map(toX);
      context.fillStyle = themeColor("selection");
      context.fillRect(Math.min(x1, x2), 0, Math.max(Math.abs(x2 - x1), 1), bottom);
    }
    for (const time of drag ? picked : content.shown) {
      drawMark(context, clamp(toX(time), 1, width - 1), bottom, true);
    }
    drawAxis(context, content.axis, ends, { left: 0, bottom, width });
  }

  return {
    element,
    show(next) {
      content = next;
      ends = [next.axis.position(0), next.axis.position(next.end_ns)];
      const peak = formatBytes(next.values.reduce((a, b) => Math.max(a, b), 0));
      const shown = next.shown.map((time) => next.axis.describe(time)).join(" to ");
      const text = `${next.sentence}, at most ${peak}. Shown: ${shown || "the whole run"}. `
        + "Arrow keys move the moment, Shift and arrow keys select a window.";
      canvas.setAttribute("aria-label", text);
      draw();
    },
  };
}

interface Scale {
  toX(time: number): number;
  scale: number;
  bottom: number;
}

/** The upper edge of an area, and the area. */
interface Path {
  line: Path2D;
  area: Path2D;
}

/** Bins that are together narrower than a pixel are drawn as one, with their largest value. */
function tracePath(
  { bin_edges, end_ns }: StripContent,
  values: Float64Array,
  { toX, scale, bottom }: Scale,
): Path {
  const line = new Path2D();
  const first = toX(bin_edges[0] ?? 0);
  let begin = first;
  let most = 0;
  for (let bin = 0; bin < values.length && bin_edges[bin] <= end_ns; bin++) {
    // The last state lasts to the end.
    const isLast = bin === values.length - 1;
    const end_of_bin = isLast ? end_ns : bin_edges[bin + 1];
    const end = toX(Math.min(end_of_bin, end_ns));
    most = Math.max(most, values[bin]);
    if (end < begin + 1 && end_of_bin < end_ns) continue;
    line.lineTo(begin, bottom - most * scale);
    line.lineTo(end, bottom - most * scale);
    begin = end;
    most = 0;
  }
  const area = new Path2D(line);
  area.lineTo(begin, bottom);
  area.lineTo(first, bottom);
  return { line, area };
}

function fillBelow(context: CanvasRenderingContext2D, { area }: Path, color: string): void {
  context.fillStyle = themeColor(color);
  context.fill(area);
}

/** The moment or window after a key; null for other keys. */
function moveByKey(content: StripContent, event: KeyboardEvent): [number, number | null] | null {
  const { end_ns, key_edges: edges } = content;
  const from = content.shown[0] ?? end_ns;
  const to = content.shown[1] ?? from;
  const target = {
    ArrowLeft: edges[firstAtLeast(edges, to) - 1] ?? 0,
    // Times are whole nanoseconds.
    ArrowRight: edges[firstAtLeast(edges, to + 1)] ?? end_ns,
    Home: 0,
    End: end_ns,
  }[event.key];
  if (target === undefined) return null;
  const moved = clamp(target, 0, end_ns);
  if (event.shiftKey || content.selected.length === 2) return [from, moved];
  return [moved, null];
}
