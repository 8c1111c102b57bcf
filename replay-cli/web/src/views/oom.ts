/** Placeholder. */

import { h } from "../dom.js";
import type { View } from "../view.js";

export const oomView: View = {
  id: "oom",
  title: "Out of memory",
  isAvailable: () => true,
  mount(root) {
    root.append(h("p", {}, "Not written yet."));
    return { update() {} };
  },
};
