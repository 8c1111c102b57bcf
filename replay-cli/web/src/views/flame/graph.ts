/** One flame graph: a call tree with its totals, ready to be placed and drawn. */

import type { Frame } from "../../data/page_data.js";
import { type CallTree, sumTree, type Totals } from "./call_tree.js";
import type { Figures } from "./figures.js";
import { searchText } from "./names.js";

export interface Graph {
  frames: Frame[];
  tree: CallTree;
  /** Width of each node. */
  weight: Float64Array;
  after: Totals;
  before: Totals | null;
  unit: "bytes" | "count";
}

/** `sources`: index of the stacks of `after` and `before` in the tree. */
export function createGraph(
  frames: Frame[],
  tree: CallTree,
  figures: Figures,
  unit: "bytes" | "count",
  sources: [number, number],
): Graph {
  const after = sumTree(tree, sources[0], figures.after.bytes, figures.after.count);
  const before = figures.before
    ? sumTree(tree, sources[1], figures.before.bytes, figures.before.count)
    : null;
  let weight = unit === "bytes" ? after.bytes : after.count;
  if (before) weight = largerOfBoth(tree, before.selfBytes, after.selfBytes);
  return { frames, tree, weight, after, before, unit };
}

/** Width of a difference: the larger of both moments, by stack, so that nothing vanishes. */
function largerOfBoth(tree: CallTree, a: Float64Array, b: Float64Array): Float64Array {
  const weight = a.map((bytes, node) => Math.max(bytes, b[node]));
  for (let node = weight.length - 1; node > 0; node--) weight[tree.parent[node]] += weight[node];
  return weight;
}

/** What a search or a selected call site lights up. */
export interface Highlight {
  isLit: Uint8Array;
  /** Bytes (or blocks) of all lit stacks, each counted once. */
  sum: number;
  nodes: number;
}

/** Nodes of frames whose text contains `query`; null for an empty query. */
export function searchGraph(graph: Graph, query: string): Highlight | null {
  const wanted = query.trim().toLowerCase();
  if (wanted === "") return null;
  const { frame, parent } = graph.tree;
  const matches = new Map<number, boolean>();
  const isLit = new Uint8Array(frame.length);
  const isCovered = new Uint8Array(frame.length);
  const values = graph.before ? graph.after.bytes : graph.weight;
  let sum = 0;
  let nodes = 0;
  for (let node = 1; node < frame.length; node++) {
    const number = frame[node];
    let match = matches.get(number);
    if (match === undefined) {
      match = searchText(graph.frames, number).includes(wanted);
      matches.set(number, match);
    }
    const above = isCovered[parent[node]];
    isCovered[node] = above || match ? 1 : 0;
    if (!match || graph.weight[node] === 0) continue;
    isLit[node] = 1;
    nodes++;
    if (!above) sum += values[node];
  }
  return { isLit, sum, nodes };
}

/** Nodes on the stacks of one call site. */
export function lightStacks(
  graph: Graph,
  source: number,
  bytes: Float64Array,
  stackSite: Uint32Array,
  site: number,
): Highlight {
  const { tree } = graph;
  const isLit = new Uint8Array(tree.frame.length);
  let sum = 0;
  stackSite.forEach((each, stack) => {
    if (each !== site) return;
    sum += bytes[stack];
    for (let node = tree.stackEnd[source][stack]; !isLit[node]; node = tree.parent[node]) {
      isLit[node] = 1;
      if (node === 0) break;
    }
  });
  return { isLit, sum, nodes: 0 };
}

/** The deepest node that all stacks of a call site with bytes share; 0 if there are none. */
export function nodeOfSite(graph: Graph, stackSite: Uint32Array, site: number): number {
  const { stackEnd, parent, depth } = graph.tree;
  let common = -1;
  stackSite.forEach((each, stack) => {
    let node = stackEnd[0][stack];
    if (each !== site || graph.weight[node] === 0) return;
    if (common < 0) common = node;
    while (common !== node) {
      if (depth[common] < depth[node]) node = parent[node];
      else common = parent[common];
    }
  });
  return Math.max(common, 0);
}

/** From 1, all new, to -1, all gone; 0 without change. */
export function changeRatio(graph: Graph, node: number): number {
  if (!graph.before || graph.weight[node] === 0) return 0;
  return (graph.after.bytes[node] - graph.before.bytes[node]) / graph.weight[node];
}
