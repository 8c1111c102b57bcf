/**
 * Places the nodes of a call tree as rectangles of an icicle: the root on top, children below.
 *
 * Nothing below one pixel is placed: the siblings that are too narrow become one rectangle. Rows
 * are filled from the top, so a limit on rectangles cuts the deepest rows only.
 */

import { type CallTree, heavyChildren } from "./call_tree.js";

export const MAX_RECTS = 10_000;

/** Node number of rectangles that stand for several narrow siblings. */
export const MERGED = -1;

export interface Layout {
  /** Nodes; {@link MERGED} for narrow siblings. */
  node: Int32Array;
  /** Index of the rectangle above; -1 for the first one. */
  above: Int32Array;
  x: Float64Array;
  width: Float64Array;
  row: Uint16Array;
  /** Merged siblings of a {@link MERGED} rectangle. */
  merged: Uint32Array;
  /** Sum of the weights of the merged siblings. */
  mergedWeight: Float64Array;
  count: number;
  rows: number;
  /** True if deeper rows were left out. */
  isCut: boolean;
}

/** The ancestors of `zoom` fill the width; its descendants are placed by weight. */
export function placeTree(
  tree: CallTree,
  weight: Float64Array,
  zoom: number,
  width: number,
): Layout {
  const layout = emptyLayout();
  const ancestors: number[] = [];
  for (let node = zoom; node !== 0; node = tree.parent[node]) ancestors.push(tree.parent[node]);
  let above = -1;
  for (const node of ancestors.reverse()) above = put(layout, node, above, 0, width);
  put(layout, zoom, above, 0, width);
  for (let at = layout.count - 1; at < layout.count; at++) {
    const node = layout.node[at];
    if (node === MERGED) continue;
    if (!placeChildren(layout, tree, weight, node, at)) break;
  }
  return layout;
}

/** False if the limit is reached. */
function placeChildren(
  layout: Layout,
  tree: CallTree,
  weight: Float64Array,
  node: number,
  at: number,
): boolean {
  // Children are in order of their weight, so all that follow a narrow one are narrow, too.
  const children = heavyChildren(tree, weight, node);
  const scale = layout.width[at] / weight[node];
  let x = layout.x[at];
  for (let i = 0; i < children.length; i++) {
    if (layout.count >= MAX_RECTS) {
      layout.isCut = true;
      return false;
    }
    const width = weight[children[i]] * scale;
    if (width < 1) {
      const rest = children.subarray(i);
      const sum = rest.reduce((total, child) => total + weight[child], 0);
      if (sum * scale < 0.5) return true;
      const index = put(layout, MERGED, at, x, sum * scale);
      layout.merged[index] = rest.length;
      layout.mergedWeight[index] = sum;
      return true;
    }
    put(layout, children[i], at, x, width);
    x += width;
  }
  return true;
}

function put(layout: Layout, node: number, above: number, x: number, width: number): number {
  const index = layout.count++;
  const row = above < 0 ? 0 : layout.row[above] + 1;
  layout.node[index] = node;
  layout.above[index] = above;
  layout.x[index] = x;
  layout.width[index] = width;
  layout.row[index] = row;
  layout.rows = Math.max(layout.rows, row + 1);
  return index;
}

function emptyLayout(): Layout {
  // The ancestors of the zoomed node are not limited.
  const size = MAX_RECTS + 2048;
  return {
    node: new Int32Array(size),
    above: new Int32Array(size),
    x: new Float64Array(size),
    width: new Float64Array(size),
    row: new Uint16Array(size),
    merged: new Uint32Array(size),
    mergedWeight: new Float64Array(size),
    count: 0,
    rows: 0,
    isCut: false,
  };
}

/** Index of the rectangle of a row at a pixel; -1 if there is none. */
export function findRect(layout: Layout, x: number, row: number): number {
  for (let i = 0; i < layout.count; i++) {
    if (layout.row[i] === row && layout.x[i] <= x && x < layout.x[i] + layout.width[i]) return i;
  }
  return -1;
}

/** Index of the rectangle of a node; -1 if it is not placed. */
export function rectOfNode(layout: Layout, node: number): number {
  return layout.node.subarray(0, layout.count).indexOf(node);
}

/** The nearest rectangle in a direction; -1 if there is none. */
export function neighbour(
  layout: Layout,
  at: number,
  key: "ArrowUp" | "ArrowDown" | "ArrowLeft" | "ArrowRight",
): number {
  if (key === "ArrowUp") return layout.above[at];
  const isChild = (i: number): boolean => layout.above[i] === at && layout.node[i] !== MERGED;
  const isSibling = (i: number): boolean =>
    layout.above[i] === layout.above[at] && layout.node[i] !== MERGED && i !== at;
  if (key === "ArrowDown") return firstIndex(layout, isChild, 0, 1);
  return key === "ArrowRight"
    ? firstIndex(layout, isSibling, at + 1, 1)
    : firstIndex(layout, isSibling, at - 1, -1);
}

function firstIndex(
  layout: Layout,
  test: (index: number) => boolean,
  from: number,
  step: 1 | -1,
): number {
  for (let i = from; i >= 0 && i < layout.count; i += step) if (test(i)) return i;
  return -1;
}
