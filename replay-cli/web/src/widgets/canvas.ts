/** A canvas that is as sharp as the screen and follows the width of its parent. */

export interface Surface {
  canvas: HTMLCanvasElement;
  context: CanvasRenderingContext2D;
  /** Size in CSS pixels. */
  width: number;
  height: number;
  /** Device pixels per CSS pixel. */
  ratio: number;
}

/** Creates a canvas that screen readers announce by `label`. It can take the focus. */
export function createSurface(parent: HTMLElement, label: string): Surface {
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  canvas.tabIndex = 0;
  parent.appendChild(canvas);
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser has no 2D canvas");
  return { canvas, context, width: 0, height: 0, ratio: 1 };
}

/** Takes over the width of the parent; clears the canvas. Coordinates are CSS pixels afterwards. */
export function fitSurface(surface: Surface, height: number): void {
  const { canvas, context } = surface;
  const width = Math.max(1, Math.floor(canvas.parentElement?.clientWidth ?? 1));
  const ratio = Math.min(window.devicePixelRatio || 1, 16_000 / Math.max(width, height));
  const pixelWidth = Math.round(width * ratio);
  const pixelHeight = Math.round(height * ratio);
  if (canvas.width !== pixelWidth) canvas.width = pixelWidth;
  if (canvas.height !== pixelHeight) canvas.height = pixelHeight;
  if (surface.width !== width) canvas.style.width = `${width}px`;
  if (surface.height !== height) canvas.style.height = `${height}px`;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  Object.assign(surface, { width, height, ratio });
}
