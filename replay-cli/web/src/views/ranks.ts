/** Placeholder. */

import { h } from "../dom.js";
import type { View } from "../view.js";

export const ranksView: View = {
  id: "ranks",
  title: "Ranks",
  isAvailable: () => true,
  mount(root) {
    root.append(h("p", {}, "Not written yet."));
    return { update() {} };
  },
};
