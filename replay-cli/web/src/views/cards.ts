/** Views of cards that the command wrote: leaks and out-of-memory errors. */

import { type ChartPlace, showCards } from "../widgets/card.js";
import type { Context, View } from "../view.js";

/** Draws a chart anew, for another theme, width or unit of the axis. */
export type UpdateChart = () => void;

/** The cards of the selected trace. `draw` draws all charts in them for the first time. */
export function cardView(
  id: "leaks" | "oom",
  title: string,
  draw: (places: ChartPlace[], trace: number, context: Context) => UpdateChart[] = () => [],
): View {
  return {
    id,
    title,
    isAvailable: (model) => model.data.cards.some((cards) => cards[id].length > 0),
    mount(root, context) {
      let shown = -1;
      let charts: UpdateChart[] = [];
      return {
        update() {
          const { trace } = context.selection();
          if (trace !== shown) {
            shown = trace;
            const places = showCards(root, context.model.data.cards[trace][id], context);
            charts = draw(places, trace, context);
          }
          for (const update of charts) update();
        },
      };
    },
  };
}
