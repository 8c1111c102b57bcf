/** The axis below a chart of the whole run, and the marks of moments on it. */

import type { Axis } from "../widgets/axis.js";
import { themeColor } from "../shell/theme.js";
import { fitLabel } from "./label_width.js";

/** Height of the axis. */
export const AXIS = 20;
/** Least distance of two labels. */
const LABEL_WIDTH = 110;

/** Where the axis is drawn. */
export interface AxisPlace {
  left: number;
  bottom: number;
  width: number;
}

export function drawTimeAxis(
  context: CanvasRenderingContext2D,
  axis: Axis,
  [from, to]: [number, number],
  { left, bottom, width }: AxisPlace,
): void {
  context.fillStyle = themeColor("border");
  context.fillRect(left, bottom, width, 1);
  context.font = `11px ${themeColor("font")}`;
  context.textBaseline = "middle";
  context.fillStyle = themeColor("muted");
  const unit = axis.unit === "step" ? "step " : "";
  const count = Math.max(2, Math.floor(width / LABEL_WIDTH));
  for (const { at, label } of axis.ticks(from, to, count)) {
    const x = left + ((at - from) / Math.max(to - from, 1e-12)) * width;
    context.fillRect(x, bottom, 1, 4);
    const text = unit + label;
    if (fitLabel(context, text, left + width - x - 4) === text) {
      context.fillText(text, x + 4, bottom + AXIS / 2 + 2);
    }
  }
}

/** A triangle at the top of the chart; the chosen moment has a line, too. */
export function drawMoment(
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
