/** A plain table behind a summary, for charts and lists: the same numbers as text. */

import { h, on } from "../widgets/dom.js";

/** The first column is text, the others are numbers. */
export function plainTable(
  caption: string,
  header: string[],
  rows: (string | Node)[][],
): HTMLElement {
  const cell = (tag: "th" | "td", content: string | Node, column: number): HTMLElement =>
    h(tag, { class: column > 0 ? "number" : null, scope: tag === "th" ? "col" : null }, content);
  return h("div", "scroll-x", h("table", {},
    h("caption", "visually-hidden", caption),
    h("thead", {}, h("tr", {}, ...header.map((text, i) => cell("th", text, i)))),
    h("tbody", {}, ...rows.map((row) =>
      h("tr", {}, ...row.map((content, i) => cell("td", content, i)))))));
}

/** `summary` opens the table; it is built when it is first open. */
export function tableBehind(
  summary: string,
  isOpen: boolean,
  build: () => HTMLElement,
): HTMLElement {
  const details = h("details", { open: isOpen }, h("summary", {}, summary));
  const show = (): void => {
    if (details.open && details.childElementCount === 1) details.append(build());
  };
  on(details, "toggle", show);
  show();
  return details;
}
