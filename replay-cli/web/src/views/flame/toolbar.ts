/** Mode, filters and search of the flame graph. All of them are options of the selection. */

import { press, segmented } from "../../widgets/segmented.js";
import { fill, h, on } from "../../widgets/dom.js";
import type { Selection } from "../../view.js";
import type { Mode } from "./figures.js";

export interface Settings {
  mode: Mode;
  unit: "bytes" | "count";
  ownOnly: boolean;
  native: boolean;
  inverted: boolean;
  query: string;
}

const MODES: [Mode, string, string][] = [
  ["peak", "Peak", "Live blocks at the exact peak"],
  ["live", "Live", "Live blocks at the selected moment"],
  ["kept", "New and live", "Allocated in the window and still live at its end"],
  ["churn", "Freed again", "Allocated and freed in the window"],
  ["difference", "Difference", "Two moments: the begin and the end of the window"],
  ["traces", "Two traces", "The peaks of both traces"],
];

const SWITCHES: ["own" | "native" | "inverted", string, string][] = [
  ["own", "Own code only", "Hide the frames of libraries, and native frames"],
  ["native", "Native frames", "Show native frames between Python frames"],
  ["inverted", "Callees first", "Innermost frames on top, their callers below"],
];

export function readSettings(selection: Selection, fallback: Mode, modes: Mode[]): Settings {
  const { options } = selection;
  const mode = options["flame.mode"] as Mode;
  const chosen = modes.includes(mode) ? mode : fallback;
  return {
    mode: chosen,
    unit: chosen === "churn" && options["flame.unit"] === "count" ? "count" : "bytes",
    ownOnly: options["flame.own"] === "1",
    native: options["flame.native"] === "1" && options["flame.own"] !== "1",
    inverted: options["flame.inverted"] === "1",
    query: options["flame.search"] ?? "",
  };
}

export interface Toolbar {
  element: HTMLElement;
  update(settings: Settings, modes: Mode[], searchResult: string): void;
}

/** `change` gets the changed options; null removes one. */
export function createToolbar(change: (options: Record<string, string | null>) => void): Toolbar {
  const modeBox = segmented("What is shown");
  const unitBox = segmented("Unit");
  const switchBox = h("div", "flame-switches");
  const search = h("input", {
    type: "search", placeholder: "Search functions and files", "aria-label": "Search frames",
  });
  const result = h("span", { class: "muted", role: "status" });
  on(search, "input", () => change({ "flame.search": search.value || null }));

  const switches = SWITCHES.map(([name, text, title]) => {
    const button = h("button", { title }, text);
    on(button, "click", () => {
      const isOn = button.getAttribute("aria-pressed") === "true";
      change({ [`flame.${name}`]: isOn ? null : "1" });
    });
    switchBox.append(button);
    return { name, button };
  });
  const units = (["bytes", "count"] as const).map((unit) => {
    const button = h("button", {}, unit === "bytes" ? "Bytes" : "Blocks");
    on(button, "click", () => change({ "flame.unit": unit }));
    unitBox.append(button);
    return { unit, button };
  });
  let shownModes = "";
  let modeButtons: { mode: Mode; button: HTMLButtonElement }[] = [];

  return {
    element: h("div", "toolbar",
      modeBox, unitBox, switchBox,
      h("div", "flame-search", search, result)),
    update(settings, modes, searchResult) {
      if (shownModes !== modes.join()) {
        shownModes = modes.join();
        modeButtons = MODES.filter(([mode]) => modes.includes(mode)).map(([mode, text, title]) => {
          const button = h("button", { title }, text);
          on(button, "click", () => change({ "flame.mode": mode }));
          return { mode, button };
        });
        fill(modeBox, ...modeButtons.map(({ button }) => button));
      }
      for (const { mode, button } of modeButtons) press(button, mode === settings.mode);
      for (const { unit, button } of units) press(button, unit === settings.unit);
      unitBox.hidden = settings.mode !== "churn";
      const isOn = { own: settings.ownOnly, native: settings.native, inverted: settings.inverted };
      for (const { name, button } of switches) {
        press(button, isOn[name]);
        if (name === "native") button.disabled = settings.ownOnly;
      }
      if (document.activeElement !== search) search.value = settings.query;
      result.textContent = searchResult;
    },
  };
}
