/** Options of single views in the selection. */

import type { Context, Selection } from "../view.js";

/** A change of the selection that sets one option. */
export function withOption(context: Context, name: string, value: string): Partial<Selection> {
  return { options: { ...context.selection().options, [name]: value } };
}
