/**
 * Queries over the table of blocks by birth bin, death bin and stack.
 *
 * Every answer is exact at the edges of the bins, and costs one scan of the rows that were born
 * early enough. Columns are kept in the narrowest type, as a table may have millions of rows.
 */

import type { ByStack } from "./model.js";

/** Columns of the table; rows are sorted by `birth`. */
export interface BlockRows {
  birth: Uint32Array;
  /** The number of bins stands for blocks that were never freed. */
  death: Uint32Array;
  stack: Uint32Array;
  bytes: Float64Array;
  count: Float64Array;
}

export class BlockQueries {
  readonly #rows: BlockRows;
  readonly #stacks: number;

  constructor(
    rows: BlockRows,
    stacks: number,
  ) {
    this.#rows = rows;
    this.#stacks = stacks;
  }

  /** Blocks live at an edge. */
  liveAt(edge: number): ByStack {
    return this.#sum(0, edge, edge, Infinity);
  }

  /** Blocks born between two edges and live at the second one. */
  keptBetween(from: number, to: number): ByStack {
    return this.#sum(from, to, to, Infinity);
  }

  /** Blocks born between two edges and freed before the second one. */
  churnBetween(from: number, to: number): ByStack {
    return this.#sum(from, to, 0, to);
  }

  /** Sums rows with `from <= birth < to` and `minDeath <= death < endDeath`. */
  #sum(from: number, to: number, minDeath: number, endDeath: number): ByStack {
    const { birth, death, stack, bytes, count } = this.#rows;
    const totals = { bytes: new Float64Array(this.#stacks), count: new Float64Array(this.#stacks) };
    const end = firstAtLeast(birth, to);
    for (let row = firstAtLeast(birth, from); row < end; row++) {
      const died = death[row];
      if (died < minDeath || died >= endDeath) continue;
      totals.bytes[stack[row]] += bytes[row];
      totals.count[stack[row]] += count[row];
    }
    return totals;
  }
}

/** Index of the first value that is at least `limit`, in an ascending array. */
export function firstAtLeast(values: ArrayLike<number>, limit: number): number {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
