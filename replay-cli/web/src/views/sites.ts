/** Placeholder. */

import { h } from "../dom.js";
import type { View } from "../view.js";

export const sitesView: View = {
  id: "sites",
  title: "Call sites",
  isAvailable: () => true,
  mount(root) {
    root.append(h("p", {}, "Not written yet."));
    return { update() {} };
  },
};
