/**
 * The colour of each call site, equal in all views and both themes.
 *
 * Eight hues go to the sites with the most bytes over time; all others are grey. The hues were
 * picked for the largest least distance under normal vision, protanopia, deuteranopia and
 * tritanopia, with a contrast of at least 3:1 to the background of both themes.
 */

import { byteTime } from "../data/bins.js";
import type { Model } from "../data/model.js";

export const HUES = [
  "#246cdc", "#eb6414", "#26a162", "#ac3a9a", "#9884eb", "#bf3624", "#1e7758", "#d56bae",
];
export const GREY = "#80868f";

/** Colours by `site.id`. The same id has the same colour in every trace. */
export function rankColors(model: Model): Map<string, string> {
  const areas = new Map<string, number>();
  for (const trace of model.traces) {
    for (const device of trace.devices) {
      const { sites, edges_ns } = device.data.bins;
      for (const { site, bytes } of sites) {
        const { id } = trace.sites[site];
        const area = byteTime(device.column(edges_ns), device.column(bytes));
        areas.set(id, (areas.get(id) ?? 0) + area);
      }
    }
  }
  const ranked = [...areas].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  return new Map(ranked.slice(0, HUES.length).map(([id], rank) => [id, HUES[rank]]));
}

/** Colours of the parts of memory: what is in use, outside of it, and unused by cause. */
const PART_COLORS: Record<string, string> = {
  live: HUES[0],
  rounding: HUES[1],
  pending_free: HUES[7],
  stranded_stream: HUES[3],
  stranded_pool: HUES[4],
  pinned: HUES[5],
  cache: HUES[2],
  outside: HUES[1],
  used: "var(--muted)",
  free: "var(--raised)",
};

export function partColor(part: string): string {
  return PART_COLORS[part] ?? GREY;
}

const CATEGORY_ORDER = [
  "activations", "parameters", "optimizer state", "gradients", "temporaries", "workspaces",
  "inputs", "retained",
];

/** Colour of a category; grey if it is unknown. */
export function categoryColor(category: string): string {
  return HUES[CATEGORY_ORDER.indexOf(category)] ?? GREY;
}
