/** What a view is, and what all views share. */

import type { Model } from "./data/model.js";

/** Selected part of the run. All views show the same one. */
export interface Selection {
  /** Index in `Model.traces`. */
  trace: number;
  /** Index in `TraceModel.devices`. */
  device: number;
  /** A moment, or the begin and end of a window, in nanoseconds; null for the whole run. */
  from_ns: number | null;
  to_ns: number | null;
  /** `site.id` of the selected call site. */
  site: string | null;
  /** Unit of the time axis. */
  axis: "time" | "step";
  /** Settings and places of single views, such as the zoom of the flame graph. */
  options: Record<string, string>;
}

export interface Context {
  model: Model;
  /** The present selection. Never change it; call `select`. */
  selection(): Selection;
  /** Changes some fields. All visible views are updated, and the URL's fragment. */
  select(change: Partial<Selection>): void;
  /** Like `select`, as a step of its own: Back returns to what was selected before. */
  visit(change: Partial<Selection>): void;
  /** Goes to another view, perhaps with another selection. */
  open(view: string, change?: Partial<Selection>): void;
  /** Colour of a site, equal in all views and both themes; null for "others". */
  color(siteIndex: number | null): string;
}

export interface View {
  /** Name in the URL and in `data-view`, such as "timeline". */
  id: string;
  title: string;
  /** False if the trace has nothing to show here; the tab is left out. */
  isAvailable(model: Model): boolean;
  /** Work that can be done before the view is opened, in short steps for the idle time. */
  prepare?(context: Context): Iterable<unknown>;
  /** Builds the view into an empty element. Called once, when the view is first opened. */
  mount(root: HTMLElement, context: Context): MountedView;
}

export interface MountedView {
  /** Called after each change of the selection, and when the view becomes visible or is resized. */
  update(): void;
}
