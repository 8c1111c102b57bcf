/** Options of single views in the selection. */

import type { Context, Selection } from "../view.js";

/** A change of the selection that sets some options; null and an empty text remove one. */
export function withOptions(
  context: Context,
  change: Record<string, string | null>,
): Partial<Selection> {
  const options = { ...context.selection().options };
  for (const [name, value] of Object.entries(change)) {
    if (value) options[name] = value;
    else delete options[name];
  }
  return { options };
}
