/** The bar that shows the selected window and call site, with buttons that clear them. */

import { fill, h, on, swatch } from "../widgets/dom.js";
import { formatTime } from "../widgets/format.js";
import type { TraceModel } from "../data/model.js";
import { siteIndex } from "./selection.js";
import type { Context } from "../view.js";
import { siteLink } from "../views/site_link.js";

export function createSelectionBar(context: Context): { element: HTMLElement; update(): void } {
  const element = h("div", { class: "selection-bar", role: "status", "aria-label": "Selection" });
  return {
    element,
    update() {
      const { trace, from_ns, to_ns, site } = context.selection();
      const model = context.model.traces[trace];
      element.hidden = !model || (from_ns === null && site === null);
      if (element.hidden) return;
      const parts: Node[] = [];
      if (from_ns !== null) {
        const text = to_ns === null
          ? `Moment: ${describeMoment(model, from_ns)}`
          : `Window: ${describeMoment(model, from_ns)} to ${describeMoment(model, to_ns)}`
            + `, ${formatTime(to_ns - from_ns)}`;
        const clear = () => context.visit({ from_ns: null, to_ns: null });
        parts.push(chip([text], "Clear the time selection", clear));
      }
      if (site !== null) {
        const index = siteIndex(model, site);
        const label = index === null ? "a call site of another trace" : model.sites[index].label;
        const clear = () => context.visit({ site: null });
        const name = index === null ? label : siteLink(context, site, label);
        const content = [swatch(context.color(index)), "Call site: ", name];
        parts.push(chip(content, "Clear the call site", clear));
      }
      fill(element, ...parts);
    },
  };
}

function chip(content: (Node | string)[], title: string, clear: () => void): HTMLElement {
  const button = h("button", { title, "aria-label": title }, "\u00d7");
  on(button, "click", clear);
  return h("span", "chip", h("span", "chip-text", ...content), button);
}

/** "step 12 (1.13 s)", or only the time in a trace without steps. */
export function describeMoment(trace: TraceModel, time_ns: number): string {
  const step = trace.stepAt(time_ns);
  return step === null ? formatTime(time_ns) : `step ${step} (${formatTime(time_ns)})`;
}
