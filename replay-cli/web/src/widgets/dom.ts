/**
 * Builds DOM elements. Strings become text nodes or attributes, never markup: names in a trace are
 * untrusted.
 */

export type Child = Node | string | null | undefined | false;

type Properties = Record<string, string | number | boolean | ((event: never) => void) | null>;

/**
 * Creates an element. A text instead of properties is its class. Keys that begin with "on" are
 * listeners, others are attributes; `true` sets an empty attribute, `false` and null none. Buttons
 * never submit a form.
 */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Properties | string = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (element instanceof HTMLButtonElement) element.type = "button";
  if (typeof properties === "string") properties = { class: properties };
  for (const [key, value] of Object.entries(properties)) {
    if (typeof value === "function") {
      on(element, key.slice(2) as "click", value as (event: Event) => void);
    } else if (value !== null && value !== false) {
      element.setAttribute(key, value === true ? "" : String(value));
    }
  }
  append(element, children);
  return element;
}

/** Calls a listener at each event of a kind. */
export function on<Name extends keyof HTMLElementEventMap>(
  target: EventTarget,
  name: Name,
  listener: (event: HTMLElementEventMap[Name]) => void,
  options?: AddEventListenerOptions,
): void {
  target.addEventListener(name, listener as (event: Event) => void, options);
}

export function append(parent: Node, children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    parent.appendChild(typeof child === "string" ? document.createTextNode(child) : child);
  }
}

/** Replaces all children. */
export function fill(parent: HTMLElement, ...children: Child[]): void {
  parent.replaceChildren();
  append(parent, children);
}

/** A text that screen readers say when it changes. */
export function liveRegion(): HTMLElement {
  return h("p", { class: "visually-hidden", "aria-live": "polite" });
}

/** A square in the colour of a site or a cause. */
export function swatch(color: string): HTMLElement {
  const element = h("span", { class: "swatch", "aria-hidden": "true" });
  element.style.background = color;
  return element;
}
