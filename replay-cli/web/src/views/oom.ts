/** Out of memory: what was requested, why it did not fit, what helps, and what held the memory. */

import { cardView } from "./cards.js";

export const oomView = cardView("oom", "Out of memory");
