/**
 * Reads the selection: a moment has no `to_ns`, a window has both ends.
 *
 * `Context.select` normalizes: it orders the ends, and turns an empty window into a moment.
 */

import type { ByStack, DeviceModel, Model, TraceModel } from "../data/model.js";
import type { PageSite } from "../data/page_data.js";
import { fileName } from "../data/source_path.js";
import type { Selection } from "../view.js";

export interface Selected {
  trace: TraceModel;
  device: DeviceModel;
}

/** The trace and the device; null if the page has no device. */
export function selectedDevice(model: Model, selection: Selection): Selected | null {
  const trace = model.traces[selection.trace];
  const device = trace?.devices[selection.device];
  return device ? { trace, device } : null;
}

/** The selected moment; null for a window or the whole run. */
export function selectedMoment(selection: Selection): number | null {
  return selection.to_ns === null ? selection.from_ns : null;
}

/** The selected window; null for a moment or the whole run. */
export function selectedWindow(selection: Selection): { from_ns: number; to_ns: number } | null {
  const { from_ns, to_ns } = selection;
  return from_ns === null || to_ns === null ? null : { from_ns, to_ns };
}

export function normalize(selection: Selection): Selection {
  let { from_ns, to_ns } = selection;
  if (from_ns === null && to_ns !== null) [from_ns, to_ns] = [to_ns, null];
  if (from_ns !== null && to_ns !== null) {
    if (from_ns > to_ns) [from_ns, to_ns] = [to_ns, from_ns];
    if (from_ns === to_ns) to_ns = null;
  }
  return { ...selection, from_ns, to_ns };
}

/** Index of a site in `trace.sites`; null if the trace does not have it. */
export function siteIndex(trace: TraceModel, id: string | null): number | null {
  if (id === null) return null;
  const index = trace.sites.findIndex((site) => site.id === id);
  return index < 0 ? null : index;
}

/** Sums totals by stack up to totals by site; indices are those of `trace.sites`. */
export function sumBySite(trace: TraceModel, totals: ByStack): ByStack {
  const bytes = new Float64Array(trace.sites.length);
  const count = new Float64Array(trace.sites.length);
  const sites = trace.stackSite;
  for (let stack = 0; stack < sites.length; stack++) {
    bytes[sites[stack]] += totals.bytes[stack];
    count[sites[stack]] += totals.count[stack];
  }
  return { bytes, count };
}

/** The label of a site with only the name of its file: "train.py:31 in log()". */
export function shortLabel({ label, file }: PageSite): string {
  return file && label.startsWith(file) ? label.slice(file.length - fileName(file).length) : label;
}
