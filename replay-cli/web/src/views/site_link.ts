/** Names of call sites. A click opens the flame graph at the stacks of the site. */

import { h, on } from "../widgets/dom.js";
import type { Context, Selection } from "../view.js";
import { withOptions } from "./options.js";

/** `change` selects a moment, too. The flame graph shows its default for the selected time. */
export function siteLink(
  context: Context,
  id: string,
  text: string,
  change: Partial<Selection> = {},
): HTMLElement {
  const link = h("button", { class: "link", title: "Show its call stacks in the flame graph" }, text);
  on(link, "click", (event) => {
    // A row around the link has a click of its own.
    event.stopPropagation();
    const options = withOptions(context, { "flame.mode": null, "flame.zoom": "site" });
    context.open("flame", { ...options, site: id, ...change });
  });
  return link;
}
