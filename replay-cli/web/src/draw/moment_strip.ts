/**
 * A strip of memory over the run on which a moment or a window is picked.
 *
 * A click picks a moment, a drag a window. Left and Right move the moment, or the end of the
 * window, by one bin; with Shift, they begin a window.
 */

import { clamp } from "../widgets/clamp.js";
import type { Axis } from "../widgets/axis.js";
import { createSurface, fitSurface } from "../widgets/canvas.js";
import { h, on } from "../widgets/dom.js";
import { formatBytes } from "../widgets/format.js";
import { themeColor } from "../shell/theme.js";
import { AXIS, drawMoment, drawTimeAxis } from "./time_axis.js";

export interface StripContent {
  end_ns: number;
  /** Upper bounds of memory, one for each bin. */
  start_ns: number;
  width_ns: number;
  values: Float64Array;
  /** How far an arrow key moves. */
  key_ns: number;
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

const HEIGHT = 86;
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
  let drag: { from: number; to: number } | null = null;

  const ends = (): [number, number] => {
    const { axis, end_ns } = content!;
    return [axis.position(0), axis.position(end_ns)];
  };
  const toX = (time: number): number => {
    const [from, to] = ends();
    return ((content!.axis.position(time) - from) / Math.max(to - from, 1e-12)) * surface.width;
  };
  const toTime = (event: PointerEvent): number => {
    const { left, width } = canvas.getBoundingClientRect();
    const share = clamp((event.clientX - left) / width, 0, 1);
    const [from, to] = ends();
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
      drawArea(context, content, content.behind, { toX, scale, bottom }, themeColor("raised"));
    }
    drawArea(context, content, content.values, { toX, scale, bottom }, themeColor("accent-soft"));
    drawLine(context, content, { toX, scale, bottom });
    const picked = drag ? [drag.from, drag.to] : content.selected;
    if (picked.length === 2) {
      const [x1, x2] = picked.map(toX);
      context.fillStyle = themeColor("selection");
      context.fillRect(Math.min(x1, x2), 0, Math.max(Math.abs(x2 - x1), 1), bottom);
    }
    for (const time of drag ? picked : content.shown) {
      drawMoment(context, clamp(toX(time), 1, width - 1), bottom, true);
    }
    drawTimeAxis(context, content.axis, ends(), { left: 0, bottom, width });
  }

  return {
    element,
    show(next) {
      content = next;
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

/** Returns where the last bin ends. */
function tracePath(
  context: CanvasRenderingContext2D,
  content: StripContent,
  values: Float64Array,
  { toX, scale, bottom }: Scale,
): number {
  let last = 0;
  values.forEach((value, bin) => {
    const begin = content.start_ns + bin * content.width_ns;
    const end = Math.min(begin + content.width_ns, content.end_ns);
    if (begin > content.end_ns) return;
    last = toX(end);
    context.lineTo(toX(begin), bottom - value * scale);
    context.lineTo(last, bottom - value * scale);
  });
  return last;
}

function drawArea(
  context: CanvasRenderingContext2D,
  content: StripContent,
  values: Float64Array,
  scale: Scale,
  color: string,
): void {
  context.beginPath();
  context.moveTo(scale.toX(content.start_ns), scale.bottom);
  context.lineTo(tracePath(context, content, values, scale), scale.bottom);
  context.fillStyle = color;
  context.fill();
}

function drawLine(context: CanvasRenderingContext2D, content: StripContent, scale: Scale): void {
  context.beginPath();
  tracePath(context, content, content.values, scale);
  context.strokeStyle = themeColor("accent");
  context.lineWidth = 1.25;
  context.stroke();
}

/** The moment or window after a key; null for other keys. */
function moveByKey(content: StripContent, event: KeyboardEvent): [number, number | null] | null {
  const { end_ns, key_ns } = content;
  const step = { ArrowLeft: -key_ns, ArrowRight: key_ns }[event.key];
  const target = { Home: 0, End: end_ns }[event.key];
  if (step === undefined && target === undefined) return null;
  const from = content.shown[0] ?? end_ns;
  const to = content.shown[1] ?? from;
  const moved = clamp(target ?? to + step!, 0, end_ns);
  if (event.shiftKey || content.selected.length === 2) return [from, moved];
  return [moved, null];
}
