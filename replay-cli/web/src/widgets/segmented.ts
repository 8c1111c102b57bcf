/** Buttons of which some are pressed. */

import { h } from "./dom.js";

/** Buttons beside each other, with a name for screen readers. */
export function segmented(label: string, ...buttons: HTMLElement[]): HTMLElement {
  return h("div", { class: "segmented", role: "group", "aria-label": label }, ...buttons);
}

export function press(button: HTMLElement, isPressed: boolean): void {
  button.setAttribute("aria-pressed", String(isPressed));
}
