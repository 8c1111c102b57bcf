/**
 * Makes elements of the cards that the command wrote (`replay-cli/src/page/cards/`).
 *
 * Names in a trace are untrusted. Tags and attributes are therefore those of the lists below, and
 * texts become text nodes.
 */

import { type Child, fill, h, on } from "./dom.js";
import { partColor } from "./colors.js";
import { withOptions } from "../views/options.js";
import type { Context, Selection } from "../view.js";

/** A text, or an element with its properties and its content. */
export type Card = string | [tag: string, properties: Properties, content: Card[]];

interface Properties {
  /** A click opens a view, or changes only the selection. */
  go?: [view: string | null, change: Partial<Selection>];
  /** The background: the colour of a call site, of a part of memory, or of the theme. */
  site?: number | null;
  part?: string;
  theme?: string;
  /** Width, and space to the left, as shares of the parent's width. */
  width?: number;
  indent?: number;
  /** Share of the upper edge of a shape that gets wider downwards. */
  cut?: number;
  /** The heights of an area in equal spans from left to right, as shares of the whole height. */
  heights?: number[];
  /** A click shows the hidden elements beside this one. */
  reveal?: string;
  /** The view draws a chart into this element. */
  chart?: object;
  /** Attributes. */
  [name: string]: unknown;
}

/** An element for a chart, and what to draw there. */
export interface ChartPlace {
  element: HTMLElement;
  chart: object;
}

const TAGS = new Set(("a article button code dd details div dl dt figcaption figure h2 h3 li ol p "
  + "pre section span strong summary table tbody td th thead tr ul").split(" "));
const ATTRIBUTES = /^(class|disabled|hidden|role|scope|title|aria-[a-z]+|data-[a-z]+)$/;

/** Replaces the content of an element by cards. Returns the places for charts in them. */
export function showCards(parent: HTMLElement, cards: Card[], context: Context): ChartPlace[] {
  const places: ChartPlace[] = [];
  fill(parent, ...cards.map((card) => makeNode(card, context, places)));
  return places;
}

/** The element of a card. It throws on tags and attributes that no card has. */
export function makeNode(card: Card, context: Context, places: ChartPlace[] = []): Child {
  if (typeof card === "string") return card;
  const [tag, properties, content] = card;
  const { go, site, part, theme, width, indent, cut, heights, reveal, chart, ...attributes } = properties;
  const unknown = Object.keys(attributes).find((name) => !ATTRIBUTES.test(name));
  if (unknown || !TAGS.has(tag)) throw new Error(`unknown element: ${tag} ${unknown}`);
  const element: HTMLElement = h(tag as "div", attributes as Record<string, string>,
    ...content.map((child) => makeNode(child, context, places)));
  const { style } = element;
  if (part) style.background = partColor(part);
  if (theme) style.background = `var(--${theme})`;
  if (site !== undefined) style.background = context.color(site);
  if (width !== undefined) style.width = `${width * 100}%`;
  if (indent !== undefined) style.marginLeft = `min(${indent * 100}%, 100% - 3px)`;
  if (cut !== undefined) style.clipPath = `polygon(0 0, ${cut * 100}% 0, 100% 100%, 0 100%)`;
  if (heights) style.clipPath = areaOf(heights);
  if (chart) places.push({ element, chart });
  if (reveal) on(element, "click", () => revealSiblings(element));
  if (go) makeLink(element, context, ...go);
  return element;
}

/** A polygon with a step for each span. */
function areaOf(heights: number[]): string {
  const steps = heights.flatMap((height, index) => [index, index + 1].map((edge) =>
    `${edge / heights.length * 100}% ${(1 - height) * 100}%`));
  return `polygon(0 100%, ${steps.join(", ")}, 100% 100%)`;
}

function revealSiblings(element: HTMLElement): void {
  for (const hidden of element.parentElement!.querySelectorAll<HTMLElement>("[hidden]")) {
    hidden.hidden = false;
  }
  element.remove();
}

/** A click on the element opens a view, or changes only the selection. */
function makeLink(
  element: HTMLElement,
  context: Context,
  view: string | null,
  { options, ...change }: Partial<Selection>,
): void {
  if (element instanceof HTMLAnchorElement) element.href = `#${view}`;
  on(element, "click", (event) => {
    event.preventDefault();
    const all: Partial<Selection> = options
      ? { ...change, ...withOptions(context, options) }
      : change;
    if (view === null) context.visit(all);
    else context.open(view, all);
  });
}

/** A link to another view. */
export function viewLink(text: string, view: string, context: Context, name = "more-link"): Node {
  return makeNode(["a", { class: name, go: [view, {}] }, [text]], context) as Node;
}
