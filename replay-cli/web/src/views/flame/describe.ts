/** Nodes of a flame graph in words: for the tooltip, the live region and the panel below. */

import { type Child, h } from "../../widgets/dom.js";
import { facts } from "../../draw/tooltip.js";
import {
  exactBytes, formatByteChange, formatBytes, formatNumberOf, formatShare,
} from "../../widgets/format.js";
import type { Graph } from "./graph.js";
import { type Layout, MERGED } from "./layout.js";
import { frameFullPlace, frameName } from "./names.js";

/** The content of the tooltip of a rectangle. */
export function describeNode(graph: Graph, layout: Layout, rect: number): Child[] {
  const node = layout.node[rect];
  if (node === MERGED) {
    const sum = layout.mergedWeight[rect];
    const amount = graph.unit === "bytes" ? formatBytes(sum) : formatNumberOf(sum, "block");
    return [
      h("p", "tooltip-title", formatNumberOf(layout.merged[rect], "narrow sibling")),
      h("p", "muted", `${amount} in all; zoom into the frame above to see them.`),
    ];
  }
  return [
    h("p", "tooltip-title", nodeName(graph, node)),
    node > 0 && h("p", "muted", frameFullPlace(graph.frames, graph.tree.frame[node])),
    facts(nodeFacts(graph, node)),
  ];
}

export function nodeName(graph: Graph, node: number): string {
  return node === 0 ? "All call stacks" : frameName(graph.frames, graph.tree.frame[node]);
}

export function nodeFacts(graph: Graph, node: number): ([string, string] | null)[] {
  const { after, before } = graph;
  if (before) {
    const [a, b] = [before.bytes[node], after.bytes[node]];
    return [
      ["Change", b === a ? "0 B" : `${formatByteChange(b - a)}`],
      ["A", `${exactBytes(a)} in ${formatNumberOf(before.count[node], "block")}`],
      ["B", `${exactBytes(b)} in ${formatNumberOf(after.count[node], "block")}`],
    ];
  }
  return [
    ["Bytes", `${exactBytes(after.bytes[node])}, ${formatShare(after.bytes[node], after.bytes[0])}`],
    ["Blocks", `${formatNumberOf(after.count[node], "block")}, `
      + formatShare(after.count[node], after.count[0])],
    after.selfBytes[node] > 0 && after.selfBytes[node] !== after.bytes[node]
      ? ["Allocated here", exactBytes(after.selfBytes[node])]
      : null,
  ];
}

/** `validate() at train.py:31: 1.50 GiB, 76% of all, 48 blocks, level 3`. */
export function nodeSentence(graph: Graph, node: number): string {
  const place = node === 0 ? "" : frameFullPlace(graph.frames, graph.tree.frame[node]);
  const at = place === "" ? "" : ` at ${place}`;
  const figures = nodeFacts(graph, node).flatMap((row) => (row ? [`${row[0]} ${row[1]}`] : []));
  return `${nodeName(graph, node)}${at}: ${figures.join("; ")}; level ${graph.tree.depth[node]}`;
}
