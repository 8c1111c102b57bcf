/** The controls above the timeline. Their state is in the selection, so links keep it. */

import { withOptions } from "../options.js";
import { press, segmented } from "../../widgets/segmented.js";
import { h } from "../../widgets/dom.js";
import type { GroupKind } from "../../data/page_data.js";
import type { Context } from "../../view.js";

export interface Toolbar {
  element: HTMLElement;
  settings(): { showsReserved: boolean; showsDevice: boolean };
  update(isZoomed: boolean, groups: GroupKind[]): void;
}

export interface ToolbarActions {
  reset(): void;
  zoomToSelection(): void;
  csv(): void;
}

const STACKINGS: [GroupKind | null, string, string][] = [
  [null, "Call sites", "call site"],
  ["category", "Categories", "what the memory was for"],
  ["stream", "Streams", "CUDA stream"],
  ["pool", "Pools", "pool of PyTorch's allocator"],
];

export function createToolbar(context: Context, actions: ToolbarActions): Toolbar {
  const option = (key: string) => context.selection().options[key];
  const setOption = (key: string, value: string | null) =>
    context.select(withOptions(context, { [key]: value }));
  const button = (text: string, title: string, onclick: () => void) =>
    h("button", { title, onclick }, text);

  const stackings = STACKINGS.map(([kind, text, title]) => ({
    kind,
    element: button(text, `Stack by ${title}`, () => setOption("stack", kind)),
  }));
  const bySteps = button("Steps", "Equal width for each step", () =>
    context.select({ axis: "step" }));
  const byTime = button("Time", "Axis of time", () => context.select({ axis: "time" }));
  const reserved = button("Reserved", "Memory that PyTorch reserved", () =>
    setOption("reserved", option("reserved") === "off" ? null : "off"));
  const device = button("Driver", "Memory that the driver handed to the process", () =>
    setOption("driver", option("driver") === "off" ? null : "off"));
  const toSelection = button("Zoom to window", "Show the selected window", actions.zoomToSelection);
  const whole = button("Whole run", "Show the whole run (double click)", actions.reset);
  const csv = button("CSV", "Download the numbers of the chart", actions.csv);

  const axis = segmented("Axis", bySteps, byTime);
  const element = h(
    "div",
    "chart-toolbar",
    segmented("Stack by", ...stackings.map(({ element }) => element)),
    axis,
    segmented("Lines", reserved, device),
    h("span", "spacer"),
    toSelection,
    whole,
    csv,
  );

  const settings = () => ({
    showsReserved: option("reserved") !== "off",
    showsDevice: option("driver") !== "off",
  });

  return {
    element,
    settings,
    update(isZoomed, groups) {
      const selection = context.selection();
      const shown = groups.find((kind) => kind === option("stack")) ?? null;
      for (const { kind, element } of stackings) {
        element.hidden = kind !== null && !groups.includes(kind);
        press(element, kind === shown);
      }
      axis.hidden = !context.model.traces[selection.trace]?.data.steps;
      press(bySteps, selection.axis === "step");
      press(byTime, selection.axis === "time");
      press(reserved, settings().showsReserved);
      press(device, settings().showsDevice);
      toSelection.disabled = selection.to_ns === null;
      whole.disabled = !isZoomed;
    },
  };
}
