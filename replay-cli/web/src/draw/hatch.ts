/** A pattern of diagonal lines, for free memory. */

import { themeColor } from "../shell/theme.js";

const SIZE = 6;

export function hatchPattern(context: CanvasRenderingContext2D): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = SIZE;
  tile.height = SIZE;
  const draw = tile.getContext("2d");
  if (!draw) return themeColor("raised");
  draw.fillStyle = themeColor("surface");
  draw.fillRect(0, 0, SIZE, SIZE);
  draw.strokeStyle = themeColor("muted");
  draw.globalAlpha = 0.55;
  draw.beginPath();
  for (const offset of [-SIZE, 0, SIZE]) {
    draw.moveTo(offset - 1, SIZE + 1);
    draw.lineTo(offset + SIZE + 1, -1);
  }
  draw.stroke();
  return context.createPattern(tile, "repeat") ?? themeColor("raised");
}
