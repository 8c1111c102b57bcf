/**
 * Fits labels into rectangles without measuring each one.
 *
 * `measureText` of every label of a flame graph takes longer than all its rectangles. The widths of
 * the ASCII characters are measured once for each font; kerning is neglected.
 */

const tables = new Map<string, Float64Array>();

/** Widths of characters below 128; index 0 is the width assumed for all others. */
function widths(context: CanvasRenderingContext2D): Float64Array {
  let table = tables.get(context.font);
  if (!table) {
    table = Float64Array.from({ length: 128 }, (_, code) =>
      context.measureText(code < 32 ? "W" : String.fromCharCode(code)).width,
    );
    tables.set(context.font, table);
  }
  return table;
}

export function labelWidth(context: CanvasRenderingContext2D, text: string): number {
  const table = widths(context);
  let sum = 0;
  for (let i = 0; i < text.length; i++) sum += table[text.charCodeAt(i)] ?? table[0];
  return sum;
}

/** The longest begin of a text that fits, with an ellipsis; empty below three characters. */
export function fitLabel(context: CanvasRenderingContext2D, text: string, width: number): string {
  const table = widths(context);
  let sum = 0;
  let fits = 0;
  const room = width - table[46] * 1.6;
  for (let i = 0; i < text.length; i++) {
    sum += table[text.charCodeAt(i)] ?? table[0];
    if (sum <= room) fits = i + 1;
    if (sum > width) return fits < 3 ? "" : `${text.slice(0, fits)}\u2026`;
  }
  return text;
}
