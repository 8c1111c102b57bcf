/**
 * Bins of a timeline by their edges: the begins of the bins, and the end of the last.
 *
 * Bins follow events as well as time, so their widths differ.
 */

import { clamp } from "../widgets/clamp.js";
import { firstAtLeast } from "./block_table.js";

/** The last bin that begins at a time or before; the first bin for earlier times. */
export function binAt(edges: Float64Array, time_ns: number): number {
  let next = firstAtLeast(edges, time_ns);
  while (edges[next] === time_ns) next++;
  return clamp(next - 1, 0, Math.max(edges.length - 2, 0));
}

/** First and last bin of a span of time without its end; at least one bin. */
export function binsBetween(
  edges: Float64Array,
  begin_ns: number,
  end_ns: number,
): [number, number] {
  const first = binAt(edges, begin_ns);
  const last = Math.min(firstAtLeast(edges, end_ns), edges.length - 1) - 1;
  return [first, Math.max(first, last)];
}

/** The bytes of each bin times its width. */
export function byteTime(edges: Float64Array, values: Float64Array): number {
  return values.reduce((sum, bytes, bin) => sum + bytes * (edges[bin + 1] - edges[bin]), 0);
}
