/** Placeholder. */

import { h } from "../dom.js";
import type { View } from "../view.js";

export const overviewView: View = {
  id: "overview",
  title: "Overview",
  isAvailable: () => true,
  mount(root) {
    root.append(h("p", {}, "Not written yet."));
    return { update() {} };
  },
};
