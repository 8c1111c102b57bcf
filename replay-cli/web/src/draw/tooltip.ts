/**
 * The box beside the pointer, one for the whole page.
 *
 * It repeats what a chart says in its live region, so screen readers skip it.
 */

import { append, type Child, h } from "../widgets/dom.js";

let box: HTMLElement | undefined;

/** Shows content beside a point of the window; stays inside the window. */
export function showTooltip(clientX: number, clientY: number, ...content: Child[]): void {
  if (!box) {
    box = h("div", { class: "tooltip", "aria-hidden": "true" });
    document.body.append(box);
    window.addEventListener("scroll", hideTooltip, { passive: true });
    window.addEventListener("hashchange", hideTooltip);
  }
  box.hidden = false;
  box.replaceChildren();
  append(box, content);
  const { width, height } = box.getBoundingClientRect();
  const room = document.documentElement.clientWidth - 8;
  const left = clientX + 14 + width > room ? clientX - 14 - width : clientX + 14;
  const below = clientY + 16;
  const top = below + height > window.innerHeight - 8 ? clientY - 12 - height : below;
  box.style.left = `${Math.max(8, left)}px`;
  box.style.top = `${Math.max(8, top)}px`;
}

export function hideTooltip(): void {
  if (box) box.hidden = true;
}

/** Rows of a name and a value, for tooltips and panels. */
export function facts(rows: ([string, string] | null | false)[]): HTMLElement {
  const list = h("dl", "facts");
  for (const row of rows) {
    if (row) list.append(h("dt", {}, row[0]), h("dd", {}, row[1]));
  }
  return list;
}
