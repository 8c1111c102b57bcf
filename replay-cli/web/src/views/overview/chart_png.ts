/** The chart of the overview as a PNG file that explains itself: title, chart and legend. */

import { fitLabel } from "../../draw/label_width.js";
import type { Surface } from "../../widgets/canvas.js";
import { formatBytes } from "../../widgets/format.js";
import { themeColor } from "../../shell/theme.js";
import { highestBin, type ChartData } from "../timeline/chart_data.js";

/** In CSS pixels; the file has twice as many. */
const WIDTH = 960;
const CHART_HEIGHT = 320;
const RATIO = 2;
const MARGIN = 16;
const TITLE = 46;
const ROW = 20;
/** Call sites in the legend. */
const MAX_ROWS = 9;

export interface ChartPicture {
  title: string;
  subtitle: string;
  data: ChartData;
  /** Draws the chart into an area of this height, and as wide as the surface. */
  draw(surface: Surface, height: number): void;
}

export function drawPicture({ title, subtitle, data, draw }: ChartPicture): HTMLCanvasElement {
  const peak = highestBin(data, 0, data.end_ns);
  const bands = data.bands
    .filter(({ values }) => values[peak] > 0)
    .sort((a, b) => b.values[peak] - a.values[peak]);
  const shown = bands.slice(0, MAX_ROWS);
  const rows = shown.length + (bands.length > MAX_ROWS ? 1 : 0);
  const height = TITLE + CHART_HEIGHT + (rows + 1) * ROW + 2 * MARGIN;
  const canvas = document.createElement("canvas");
  canvas.width = (WIDTH + 2 * MARGIN) * RATIO;
  canvas.height = height * RATIO;
  const context = canvas.getContext("2d")!;
  context.fillStyle = themeColor("surface");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.setTransform(RATIO, 0, 0, RATIO, MARGIN * RATIO, MARGIN * RATIO);

  const write = (text: string, x: number, y: number, size: number, color: string): void => {
    context.font = `${size}px ${themeColor("font")}`;
    context.textAlign = "left";
    context.textBaseline = "top";
    context.fillStyle = themeColor(color);
    context.fillText(fitLabel(context, text, WIDTH - x), x, y);
  };
  write(title, 0, 0, 15, "text");
  write(subtitle, 0, 22, 12, "muted");

  context.save();
  context.translate(0, TITLE);
  draw({ canvas, context, width: WIDTH, height: CHART_HEIGHT, ratio: RATIO }, CHART_HEIGHT);
  context.restore();

  let y = TITLE + CHART_HEIGHT + 8;
  write("Allocated at the peak", 0, y, 12, "muted");
  for (const band of shown) {
    y += ROW;
    context.fillStyle = band.color;
    context.fillRect(0, y + 1, 12, 12);
    write(`${formatBytes(band.values[peak])}  ${band.label}`, 20, y, 12, "text");
  }
  if (bands.length > MAX_ROWS) {
    const rest = bands.slice(MAX_ROWS).reduce((sum, { values }) => sum + values[peak], 0);
    write(`${formatBytes(rest)}  in ${bands.length - MAX_ROWS} more`, 20, y + ROW, 12, "text");
  }
  return canvas;
}
