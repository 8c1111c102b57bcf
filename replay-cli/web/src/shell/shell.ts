/** The frame around the views: header, tabs, selection bar, keyboard, and the URL's fragment. */

import { GREY, rankColors } from "../widgets/colors.js";
import { fill, h, on } from "../widgets/dom.js";
import { createHeader } from "./header.js";
import { createHelp } from "./help.js";
import type { Model } from "../data/model.js";
import { normalize } from "./selection.js";
import { createSelectionBar } from "./selection_bar.js";
import { onThemeChange, toggleTheme } from "./theme.js";
import { defaultSelection, formatPlace, parsePlace } from "./url.js";
import type { Context, MountedView, Selection, View } from "../view.js";
import { VIEWS } from "../views/index.js";

/** A view's panel; `mounted` is set when it was first opened. */
interface Panel {
  view: View;
  root: HTMLElement;
  tab: HTMLAnchorElement;
  mounted?: MountedView;
}

/** How long after a change the URL follows; Chrome limits how often it may change. */
const URL_DELAY_MS = 150;
/** Changes of the same fields within this time, as by a slider, are one step of the history. */
const STEP_MS = 400;

export function startShell(app: HTMLElement, model: Model, reportBytes: BlobPart): void {
  const views = VIEWS.filter((view) => view.isAvailable(model));
  const names = views.map((view) => view.id);
  const defaults = defaultSelection(model);
  const colors = rankColors(model);
  let { view: current, selection } = parsePlace(location.hash, model, names);
  selection = normalize(selection);
  let urlTimer: ReturnType<typeof setTimeout> | undefined;
  let lastStep = { fields: "", time_ms: -Infinity };

  const context: Context = {
    model,
    selection: () => selection,
    select: (change) => changeSelection(change),
    visit(change) {
      const step = { fields: Object.keys(change).sort().join(), time_ms: performance.now() };
      const isNew = step.fields !== lastStep.fields || step.time_ms - lastStep.time_ms > STEP_MS;
      lastStep = step;
      if (!isNew) {
        changeSelection(change);
        return;
      }
      flushUrl();
      selection = applyChange(selection, change);
      const place = formatPlace({ view: current, selection }, defaults);
      if (place !== location.hash) history.pushState(null, "", place);
      update();
    },
    open(view, change = {}) {
      if (!names.includes(view)) return;
      flushUrl();
      lastStep.fields = "";
      selection = applyChange(selection, change);
      current = view;
      history.pushState(null, "", formatPlace({ view, selection }, defaults));
      show(true);
    },
    color(siteIndex) {
      const id = siteIndex === null ? null : model.traces[selection.trace]?.sites[siteIndex]?.id;
      return (id && colors.get(id)) || GREY;
    },
  };

  const header = createHeader(context, reportBytes);
  const bar = createSelectionBar(context);
  const help = createHelp(views);
  const panels = views.map(createPanel);
  const tabs = h("nav", { class: "tabs", "aria-label": "Views" }, ...panels.map((p) => p.tab));
  const main = h("main", { id: "main", tabindex: "-1" }, ...panels.map((p) => p.root));
  const skip = h("a", { class: "skip", href: "#" }, "Skip to the view");
  on(skip, "click", (event) => {
    event.preventDefault();
    main.focus();
  });
  header.element.prepend(skip);
  fill(app, header.element, tabs, bar.element, main, help.element);

  function createPanel(view: View, index: number): Panel {
    const root = h("section", { "data-view": view.id, "aria-label": view.title, hidden: true });
    const key = index < 9 ? String(index + 1) : null;
    const tab = h("a", { href: `#${view.id}`, title: key && `${view.title} (key ${key})` });
    tab.textContent = view.title;
    on(tab, "click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
      event.preventDefault();
      context.open(view.id);
    });
    return { view, root, tab };
  }

  function show(scrollToTop: boolean): void {
    for (const panel of panels) {
      const isCurrent = panel.view.id === current;
      panel.root.hidden = !isCurrent;
      if (isCurrent) panel.tab.setAttribute("aria-current", "page");
      else panel.tab.removeAttribute("aria-current");
    }
    if (scrollToTop) window.scrollTo(0, 0);
    update();
  }

  function update(): void {
    header.update(current);
    bar.update();
    const panel = panels.find((each) => each.view.id === current);
    if (!panel) return;
    if (!panel.mounted) panel.mounted = panel.view.mount(panel.root, context);
    panel.mounted.update();
  }

  function changeSelection(change: Partial<Selection>): void {
    selection = applyChange(selection, change);
    clearTimeout(urlTimer);
    urlTimer = setTimeout(flushUrl, URL_DELAY_MS);
    update();
  }

  /** A changed selection replaces the entry in the history; only opening a view adds one. */
  function flushUrl(): void {
    clearTimeout(urlTimer);
    const place = formatPlace({ view: current, selection }, defaults);
    if (place !== location.hash) history.replaceState(null, "", place);
  }

  function followUrl(): void {
    clearTimeout(urlTimer);
    lastStep.fields = "";
    const place = parsePlace(location.hash, model, names);
    current = place.view;
    selection = normalize(place.selection);
    show(false);
  }

  function onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.defaultPrevented || help.isOpen()) return;
    const isTyping = event.target instanceof HTMLElement
      && event.target.matches("input, select, textarea");
    if (isTyping && !event.altKey) {
      if (event.key === "Escape") (event.target as HTMLElement).blur();
      return;
    }
    const digit = /^Digit([1-9])$/.exec(event.code)?.[1];
    if (digit && views[Number(digit) - 1]) context.open(views[Number(digit) - 1].id);
    else if (event.key === "?") help.open();
    else if (event.key === "t") toggleTheme();
    else if (event.key === "/") focusSearch();
    else if (event.key === "Escape") context.visit({ from_ns: null, to_ns: null, site: null });
    else return;
    event.preventDefault();
  }

  /** The search field of the present view; the call sites have one if it has none. */
  function focusSearch(): void {
    const find = () => panels.find((panel) => panel.view.id === current)
      ?.root.querySelector<HTMLInputElement>("input[type=search]");
    if (!find() && names.includes("sites")) context.open("sites");
    find()?.focus();
  }

  function* prepareViews(): Generator {
    for (const view of views) yield* view.prepare?.(context) ?? [];
  }

  header.onHelp(() => help.open());
  document.addEventListener("keydown", onKey);
  // Each step of the history changes the fragment. A popstate would update the view twice.
  window.addEventListener("hashchange", followUrl);
  let frame = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(update);
  });
  onThemeChange(update);
  show(false);
  runWhenIdle(prepareViews());
}

/** Takes one step in each idle period. Safari has no idle periods. */
function runWhenIdle(steps: Iterator<unknown>): void {
  const later = window.requestIdleCallback ?? setTimeout;
  later(() => steps.next().done || runWhenIdle(steps));
}

/** Another trace has other devices, times and call stacks. */
function applyChange(selection: Selection, change: Partial<Selection>): Selection {
  const next = { ...selection, ...change };
  const isOtherTrace = next.trace !== selection.trace;
  if (isOtherTrace) {
    Object.assign(next, { device: 0, from_ns: null, to_ns: null }, change);
    next.options = forgetPlaces(next.options, change.options?.["flame.zoom"] === "site");
  }
  if (isOtherTrace || next.device !== selection.device) {
    const { "gap.moment": _, ...options } = next.options;
    next.options = options;
  }
  return normalize(next);
}

function forgetPlaces(options: Record<string, string>, isAtSite: boolean): Record<string, string> {
  const { zoom: _, "flame.zoom": __, ...others } = options;
  return isAtSite ? { ...others, "flame.zoom": "site" } : others;
}
