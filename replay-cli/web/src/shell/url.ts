/**
 * The URL's fragment holds the view and the selection, so that links and the back button work.
 *
 * `#timeline?site=4c4ae67980d6d774&from=100&to=200`. Fields with their default value are left out;
 * a view's own options have the prefix `o.`.
 */

import type { Model } from "../data/model.js";
import type { Selection } from "../view.js";

export interface Place {
  view: string;
  selection: Selection;
}

export function defaultSelection(model: Model): Selection {
  const trace = model.data.first_trace;
  const hasSteps = model.traces[trace]?.data.steps != null;
  return {
    trace,
    device: 0,
    from_ns: null,
    to_ns: null,
    site: null,
    axis: hasSteps ? "step" : "time",
    options: {},
  };
}

export function formatPlace({ view, selection }: Place, defaults: Selection): string {
  const query = new URLSearchParams();
  if (selection.trace !== defaults.trace) query.set("trace", String(selection.trace));
  if (selection.device) query.set("device", String(selection.device));
  if (selection.from_ns !== null) query.set("from", String(Math.round(selection.from_ns)));
  if (selection.to_ns !== null) query.set("to", String(Math.round(selection.to_ns)));
  if (selection.site !== null) query.set("site", selection.site);
  if (selection.axis !== defaults.axis) query.set("axis", selection.axis);
  for (const [key, value] of Object.entries(selection.options)) query.set(`o.${key}`, value);
  const text = query.toString();
  return `#${view}${text ? `?${text}` : ""}`;
}

/** Reads a fragment. Unknown views and numbers out of range are replaced by the default. */
export function parsePlace(fragment: string, model: Model, views: string[]): Place {
  const [name, text = ""] = fragment.replace(/^#/, "").split(/\?(.*)/s);
  const selection = defaultSelection(model);
  const query = new URLSearchParams(text);
  const trace = Number(query.get("trace") ?? selection.trace);
  if (model.traces[trace]) selection.trace = trace;
  const device = Number(query.get("device") ?? 0);
  if (model.traces[selection.trace]?.devices[device]) selection.device = device;
  selection.from_ns = parseTime(query.get("from"));
  selection.to_ns = parseTime(query.get("to"));
  selection.site = query.get("site");
  const axis = query.get("axis");
  if (axis === "time" || axis === "step") selection.axis = axis;
  for (const [key, value] of query) {
    if (key.startsWith("o.")) selection.options[key.slice(2)] = value;
  }
  return { view: views.includes(name) ? name : views[0], selection };
}

function parseTime(text: string | null): number | null {
  if (text === null || text === "") return null;
  const time = Number(text);
  return Number.isFinite(time) ? time : null;
}
