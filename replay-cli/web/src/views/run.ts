/** Placeholder. */

import { h } from "../dom.js";
import type { View } from "../view.js";

export const runView: View = {
  id: "run",
  title: "Run",
  isAvailable: () => true,
  mount(root) {
    root.append(h("p", {}, "Not written yet."));
    return { update() {} };
  },
};
