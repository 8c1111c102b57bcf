/** The axis of time or steps below a chart, and marks of moments in it. */

import type { Axis } from "../widgets/axis.js";
import { themeColor } from "../shell/theme.js";
import { fitLabel } from "./label_width.js";

/** `range`: positions on the axis at `left` and `width` pixels to the right. */
export function drawAxis(
  context: CanvasRenderingContext2D,
  axis: Axis,
  [from, to]: [number, number],
  { left, bottom, width }: { left: number; bottom: number; width: number },
): void {
  context.fillStyle = themeColor("border");
  context.fillRect(left, bottom, width, 1);
  context.font = `11px ${themeColor("font")}`;
  context.textBaseline = "middle";
  context.fillStyle = themeColor("muted");
  for (const { at, label } of axis.ticks(from, to, Math.max(2, Math.floor(width / 110)))) {
    const x = ((at - from) / Math.max(to - from, 1e-12)) * width;
    context.fillRect(left + x, bottom, 1, 4);
    if (fitLabel(context, label, width - x - 4) === label) {
      context.fillText(label, left + x + 4, bottom + 11);
    }
  }
}

/** A triangle at the top; a line below it if the moment is chosen. */
export function drawMark(
  context: CanvasRenderingContext2D,
  x: number,
  bottom: number,
  isChosen: boolean,
): void {
  context.fillStyle = themeColor(isChosen ? "accent" : "muted");
  if (isChosen) context.fillRect(x - 1, 0, 2, bottom);
  context.beginPath();
  context.moveTo(x - 5, 0);
  context.lineTo(x + 5, 0);
  context.lineTo(x, 7);
  context.fill();
}
