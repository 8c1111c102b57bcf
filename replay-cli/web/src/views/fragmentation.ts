/** Placeholder. */

import { h } from "../dom.js";
import type { View } from "../view.js";

export const fragmentationView: View = {
  id: "fragmentation",
  title: "Fragmentation",
  isAvailable: () => true,
  mount(root) {
    root.append(h("p", {}, "Not written yet."));
    return { update() {} };
  },
};
