/** Placeholder. */

import { h } from "../dom.js";
import type { View } from "../view.js";

export const leaksView: View = {
  id: "leaks",
  title: "Leaks",
  isAvailable: () => true,
  mount(root) {
    root.append(h("p", {}, "Not written yet."));
    return { update() {} };
  },
};
