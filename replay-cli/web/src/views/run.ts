/** The recording: versions, settings, losses, notes; what a maintainer asks for in a bug report. */

import { showCards } from "../widgets/card.js";
import { copyButton } from "../widgets/copy_button.js";
import { h } from "../widgets/dom.js";
import type { View } from "../view.js";

export const runView: View = {
  id: "run",
  title: "Run",
  isAvailable: () => true,
  mount(root, context) {
    const cards = h("div", "run-cards");
    const text = document.getElementById("summary")?.textContent?.trim();
    root.append(cards);
    if (text) root.append(textCard(text));
    let shown = -1;
    return {
      update() {
        const { trace } = context.selection();
        if (trace === shown) return;
        shown = trace;
        const { data } = context.model;
        showCards(cards, [...data.cards[trace].run, data.page_card], context);
      },
    };
  },
};

function textCard(text: string): HTMLElement {
  const copy = copyButton("Copy", () => text);
  return h(
    "section",
    "card",
    h("div", "card-head", h("h2", {}, "Text report"), copy),
    h("pre", { class: "text-report", tabindex: "0" }, text),
  );
}
