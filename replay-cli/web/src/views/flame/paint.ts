/** Draws a placed call tree on a canvas. */

import { createSurface, type Surface } from "../../widgets/canvas.js";
import { h } from "../../widgets/dom.js";
import { fitLabel, labelWidth } from "../../draw/label_width.js";
import { themeColor } from "../../shell/theme.js";
import { differenceColor, type FrameColors, frameTextColor } from "./frame_colors.js";
import { changeRatio, type Graph } from "./graph.js";
import { type Layout, MERGED } from "./layout.js";
import { frameName, framePlace } from "./names.js";

export const ROW_HEIGHT = 21;
const FONT = 12;
const PADDING = 5;

export interface Marks {
  /** Nodes to show in full; the others are faded. Null to show all. */
  isLit: Uint8Array | null;
  /** Underlines the lit nodes. */
  isSearch: boolean;
  /** Indices of rectangles; -1 for none. */
  hovered: number;
  focused: number;
  hasFocus: boolean;
  zoom: number;
  /** Text of the root. */
  rootLabel: string;
}

/** Measures the characters of labels and of the axis, which takes 10 ms before the first graph. */
export function measureLabels(): void {
  const { context } = createSurface(h("div"), "");
  for (const size of [11, FONT]) {
    context.font = `${size}px ${themeColor("font")}`;
    labelWidth(context, "");
  }
}

export function paintLayout(
  surface: Surface,
  graph: Graph,
  layout: Layout,
  colors: FrameColors,
  marks: Marks,
): void {
  const { context } = surface;
  const textColor = frameTextColor();
  const isDifference = graph.before !== null;
  // The first rectangles are the ancestors of the zoomed node.
  const ancestors = graph.tree.depth[marks.zoom];
  context.font = `${FONT}px ${themeColor("font")}`;
  context.textBaseline = "middle";
  for (let i = 0; i < layout.count; i++) {
    const node = layout.node[i];
    const x = layout.x[i];
    const y = layout.row[i] * ROW_HEIGHT;
    const width = Math.max(layout.width[i] - (layout.width[i] > 3 ? 1 : 0.25), 0.5);
    const isFaded = marks.isLit !== null && node > 0 && !marks.isLit[node];
    context.globalAlpha = isFaded ? 0.28 : 1;
    if (node === MERGED) {
      context.fillStyle = themeColor("border");
    } else if (node === 0) {
      context.fillStyle = themeColor("raised");
    } else {
      context.fillStyle = isDifference
        ? differenceColor(changeRatio(graph, node))
        : colors.fill(graph.tree.frame[node]);
    }
    context.fillRect(x, y, width, ROW_HEIGHT - 1);
    if (i < ancestors && node !== 0) {
      context.globalAlpha = 0.45;
      context.fillStyle = themeColor("surface");
      context.fillRect(x, y, width, ROW_HEIGHT - 1);
      context.globalAlpha = 1;
    }
    if (marks.isLit !== null && marks.isSearch && !isFaded && node > 0) {
      context.fillStyle = themeColor("accent");
      context.fillRect(x, y + ROW_HEIGHT - 4, width, 3);
    }
    if (node !== MERGED && width > 22) {
      context.globalAlpha = isFaded ? 0.62 : 1;
      context.fillStyle = textColor;
      drawLabel(context, graph, node, x, y, width, marks.rootLabel);
    }
  }
  context.globalAlpha = 1;
  outline(surface, layout, marks.hovered, themeColor("muted"), 1);
  if (marks.hasFocus) outline(surface, layout, marks.focused, themeColor("accent"), 2);
}

function drawLabel(
  context: CanvasRenderingContext2D,
  graph: Graph,
  node: number,
  x: number,
  y: number,
  width: number,
  rootLabel: string,
): void {
  const frame = graph.tree.frame[node];
  const room = width - 2 * PADDING;
  const middle = y + (ROW_HEIGHT - 1) / 2 + 0.5;
  const name = node === 0 ? rootLabel : frameName(graph.frames, frame);
  const shown = fitLabel(context, name, room);
  if (shown === "") return;
  context.fillText(shown, x + PADDING, middle);
  if (shown !== name || node === 0) return;
  const used = labelWidth(context, name) + 8;
  const place = fitLabel(context, framePlace(graph.frames, frame), room - used);
  if (place.length < 6) return;
  context.globalAlpha *= 0.85;
  context.fillText(place, x + PADDING + used, middle);
}

function outline(
  surface: Surface,
  layout: Layout,
  index: number,
  color: string,
  width: number,
): void {
  if (index < 0 || index >= layout.count) return;
  const { context } = surface;
  context.strokeStyle = color;
  context.lineWidth = width;
  const inset = width / 2;
  context.strokeRect(
    layout.x[index] + inset,
    layout.row[index] * ROW_HEIGHT + inset,
    Math.max(layout.width[index] - 1 - width, 1),
    ROW_HEIGHT - 1 - width,
  );
}
