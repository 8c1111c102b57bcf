/** The cards of the findings. Each one leads to the view that shows more. */

import { fill, h } from "../../widgets/dom.js";
import type { Finding } from "../../findings.js";
import type { Context } from "../../view.js";

const SHOWN = 4;

const WORDS: Record<Finding["severity"], string> = {
  critical: "Critical",
  warning: "Warning",
  info: "Info",
  good: "Good",
};

const LINK_WORDS: Record<string, string> = {
  leaks: "Open the leaks",
  oom: "Open the error",
  fragmentation: "Open the fragmentation",
  timeline: "Open the timeline",
  ranks: "Compare the ranks",
  run: "Open the recording",
};

export function drawFindings(parent: HTMLElement, findings: Finding[], context: Context): void {
  const cards = findings.map((finding) => card(finding, context));
  const rest = cards.splice(SHOWN);
  const more = rest.length === 0 ? null
    : h("details", {}, h("summary", {}, `${rest.length} more`), ...rest);
  fill(parent, ...cards, more);
}

function card(finding: Finding, context: Context): HTMLElement {
  const link = h("a", { href: `#${finding.view}`, class: "more-link" }, LINK_WORDS[finding.view]);
  link.addEventListener("click", (event) => {
    event.preventDefault();
    context.open(finding.view, finding.change);
  });
  const details = finding.details.join(" ");
  const advice = finding.advice.slice(0, 4).map((text) => h("li", {}, text));
  return h(
    "article",
    { class: "finding", "data-severity": finding.severity },
    h("span", { class: "severity" }, WORDS[finding.severity]),
    h(
      "div",
      { class: "finding-text" },
      h("h2", {}, finding.summary),
      finding.source ? h("code", { class: "source-line" }, finding.source.trim()) : null,
      details ? h("p", {}, details) : null,
      advice.length > 0 ? h("ul", { class: "advice" }, ...advice) : null,
      link,
    ),
  );
}
