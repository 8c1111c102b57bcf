/** The call stacks of the selected call site, those with most bytes first. */

import { makeNode } from "../../widgets/card.js";
import { fill, h } from "../../widgets/dom.js";
import { formatBytes, formatNumberOf } from "../../widgets/format.js";
import type { TraceModel } from "../../data/model.js";
import type { Context } from "../../view.js";
import { stackOfNode } from "../stack_list.js";
import type { Figures } from "./figures.js";

/** Stacks beyond this are counted. */
const MAX_STACKS = 8;

/** Fills `parent`. The first stack is open. */
export function showSiteStacks(
  parent: HTMLElement,
  context: Context,
  trace: TraceModel,
  site: number,
  { after }: Figures,
): void {
  const all: number[] = [];
  trace.stackSite.forEach((each, stack) => {
    if (each === site) all.push(stack);
  });
  const live = all.filter((stack) => after.count[stack] > 0)
    .sort((a, b) => after.bytes[b] - after.bytes[a] || a - b);
  const stacks = live.length > 0 ? live : all;
  const { label } = trace.sites[site];
  const lists = stacks.slice(0, MAX_STACKS).map((stack, index) => {
    const title = `${formatBytes(after.bytes[stack])} in `
      + formatNumberOf(after.count[stack], "block");
    const card = stackOfNode(trace, trace.stackNode[stack], title);
    const list = card && makeNode(card, context);
    if (list instanceof HTMLDetailsElement) list.open = index === 0;
    return list;
  });
  const more = stacks.length - MAX_STACKS;
  fill(parent,
    h("h3", {}, `Call stacks of ${label}`),
    live.length === 0 && h("p", "muted", "The graph shows no blocks of this call site."),
    ...lists,
    more > 0 && h("p", "muted", `${formatNumberOf(more, "other stack")} with fewer bytes.`));
}
