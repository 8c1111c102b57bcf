/** The box beside the cursor with the exact values of its column. */

import { fill, h, swatch } from "../../widgets/dom.js";
import { formatBytes, formatTime } from "../../widgets/format.js";
import type { Band, LevelRange } from "./chart_data.js";
import type { ChartStyle } from "./paint.js";

export interface TooltipContent {
  when: string;
  level: LevelRange;
  /** How much time the values cover. */
  span_ns: number;
  band: Band | null;
  bin: number;
}

export interface Tooltip {
  element: HTMLElement;
  show(x: number, style: ChartStyle, content: TooltipContent): void;
  hide(): void;
}

const GAP = 14;

export function createTooltip(): Tooltip {
  const element = h("div", { class: "chart-tooltip", hidden: true });
  return {
    element,
    hide: () => (element.hidden = true),
    show(x, style, { when, level, span_ns, band, bin }) {
      const rows: [string, number, number][] = [
        ["Allocated", level.live_min, level.live_max],
      ];
      if (style.showsReserved) rows.push(["Reserved", level.reserved_min, level.reserved_max]);
      if (style.showsDevice) rows.push(["Driver", level.device_min, level.device_max]);
      fill(
        element,
        h("strong", {}, when),
        band && h(
          "div",
          "tooltip-band",
          swatch(band.color),
          h("span", {}, band.label),
          h("span", "number", formatBytes(band.values[bin])),
        ),
        h("table", {}, h("tbody", {}, ...rows.map(row))),
        h("div", "muted", `within ${formatTime(Math.round(span_ns))}`),
      );
      element.hidden = false;
      const { plot } = style;
      const isRight = x < plot.left + plot.width / 2;
      element.style.left = isRight ? `${x + GAP}px` : "";
      const frame = element.parentElement?.clientWidth ?? 0;
      element.style.right = isRight ? "" : `${frame - x + GAP}px`;
      element.style.top = `${plot.top + 8}px`;
    },
  };
}

function row([name, least, most]: [string, number, number]): HTMLElement {
  const text = least === most
    ? formatBytes(most)
    : `${formatBytes(least)} to ${formatBytes(most)}`;
  return h("tr", {}, h("th", { scope: "row" }, name), h("td", "number", text));
}
