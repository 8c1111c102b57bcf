/** The dialog that explains keyboard and mouse. */

import { h, on } from "../widgets/dom.js";
import type { View } from "../view.js";

export interface Help {
  element: HTMLDialogElement;
  open(): void;
  isOpen(): boolean;
}

const KEYS: [string, string][] = [
  ["/", "Search"],
  ["t", "Light or dark theme"],
  ["Esc", "Clear the selection"],
  ["\u2190 \u2192", "In a chart: move the cursor; with Shift, select a window"],
  ["\u2191 \u2193", "In a chart or a table: previous or next row"],
  ["+ \u2212", "In a chart: zoom in or out around the cursor"],
  ["Home End", "In a chart: first or last moment"],
  ["Enter", "Select what is at the cursor"],
  ["?", "This help"],
];

const MOUSE: [string, string][] = [
  ["Click", "Select a moment or a call site"],
  ["Drag", "Select a window of time; all views show it"],
  ["Wheel", "Zoom around the pointer; with Shift, move"],
  ["Double click", "Show the whole run"],
];

export function createHelp(views: View[]): Help {
  const viewKeys = views.slice(0, 9).map((view, index): [string, string] => [
    String(index + 1),
    view.title,
  ]);
  const close = h("button", {}, "Close");
  const element = h(
    "dialog",
    { class: "help", "aria-label": "Keyboard and mouse" },
    h("h2", {}, "Keyboard and mouse"),
    h(
      "div",
      "columns",
      list("Views", viewKeys),
      list("Keys", KEYS),
      list("Mouse", MOUSE),
    ),
    close,
  );
  on(close, "click", () => element.close());
  on(element, "click", (event) => {
    if (event.target === element) element.close();
  });
  return { element, open: () => element.showModal(), isOpen: () => element.open };
}

function list(title: string, rows: [string, string][]): HTMLElement {
  const items = rows.flatMap(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]);
  return h("div", {}, h("h3", {}, title), h("dl", {}, ...items));
}
