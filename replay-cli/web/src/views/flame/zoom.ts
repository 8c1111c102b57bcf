/**
 * The zoom of the flame graph in the URL: the number of a node, or the stacks of the selected call
 * site.
 *
 * The numbers of nodes depend on the trace and on which frames are shown, and are the same each
 * time that a page is opened.
 */

import { withOptions } from "../options.js";
import type { Context, Selection } from "../../view.js";
import { type Graph, nodeOfSite } from "./graph.js";

const OPTION = "flame.zoom";
/** The value for the deepest node that all stacks of the selected call site share. */
const AT_SITE = "site";
/** Options that give the tree other nodes. */
const SHAPES = ["flame.own", "flame.native", "flame.inverted"];

/** The zoomed node; 0, all, for nodes that the graph lacks or that have no bytes. */
export function zoomedNode(
  graph: Graph,
  selection: Selection,
  stackSite: Uint32Array,
  site: number | null,
): number {
  const value = selection.options[OPTION];
  if (value === AT_SITE) return site === null ? 0 : nodeOfSite(graph, stackSite, site);
  const node = Number(value);
  return graph.weight[node] > 0 ? node : 0;
}

export function zoomToNode(context: Context, node: number): Partial<Selection> {
  return withOptions(context, { [OPTION]: node === 0 ? null : String(node) });
}

export function zoomToSite(context: Context, site: string): Partial<Selection> {
  return { site, ...withOptions(context, { [OPTION]: AT_SITE }) };
}

/** Forgets a node if changed options give the tree other nodes. */
export function keepZoom(
  selection: Selection,
  change: Record<string, string | null>,
): Record<string, string | null> {
  const { options } = selection;
  const isTwoTraces = [options["flame.mode"], change["flame.mode"]].includes("traces");
  const isOther = SHAPES.some((name) => name in change)
    || ("flame.mode" in change && isTwoTraces);
  return isOther && options[OPTION] !== AT_SITE ? { ...change, [OPTION]: null } : change;
}
