/** The list of bands beside the chart, with their bytes at the cursor or at the peak. */

import { h, on, swatch } from "../../widgets/dom.js";
import { formatBytes, formatShare } from "../../widgets/format.js";
import type { Band } from "./chart_data.js";

export interface Legend {
  element: HTMLElement;
  setBands(bands: Band[]): void;
  /** Orders the bands by their bytes in a bin. */
  sort(bin: number): void;
  /** Bytes of a bin. `under` is the band under the pointer, or -1. */
  setValues(bin: number, title: string, under: number): void;
  setSelected(band: number): void;
}

/** `linkOf` makes what stands beside a band, such as a link to its call stacks. */
export function createLegend(
  onSelect: (band: Band) => void,
  linkOf: (band: Band) => HTMLElement | null,
): Legend {
  const title = h("h2", {});
  const list = h("ul", {});
  const element = h("div", "timeline-legend", title, list);
  let bands: Band[] = [];
  let rows: { item: HTMLElement; row: HTMLElement; bytes: Text; share: Text }[] = [];

  return {
    element,
    setBands(newBands) {
      bands = newBands;
      list.replaceChildren();
      rows = bands.map((band) => {
        const bytes = document.createTextNode("");
        const share = document.createTextNode("");
        const content = [
          swatch(band.color),
          h("span", { class: "legend-label", title: band.title }, band.label),
          h("span", "legend-bytes", bytes),
          h("span", "legend-share", share),
        ];
        const row = band.site === null
          ? h("div", "legend-row", ...content)
          : h("button", { class: "legend-row", "aria-pressed": "false" }, ...content);
        if (band.site !== null) on(row, "click", () => onSelect(band));
        const item = h("li", "legend-item", row, linkOf(band));
        list.append(item);
        return { item, row, bytes, share };
      });
    },
    sort(bin) {
      const items = bands
        .map(({ values }, band) => ({ item: rows[band].item, bytes: values[bin] }))
        .sort((a, b) => b.bytes - a.bytes)
        .map(({ item }) => item);
      // An item that moves loses the focus.
      if (items.some((item, i) => item !== list.children[i])) list.append(...items);
    },
    setValues(bin, text, under) {
      title.textContent = text;
      const total = bands.reduce((sum, band) => sum + band.values[bin], 0);
      bands.forEach((band, index) => {
        const { row, bytes, share } = rows[index];
        bytes.data = formatBytes(band.values[bin]);
        share.data = total > 0 ? formatShare(band.values[bin], total) : "";
        row.classList.toggle("under", index === under);
      });
    },
    setSelected(selected) {
      bands.forEach((band, index) => {
        if (band.site === null) return;
        rows[index].row.setAttribute("aria-pressed", String(index === selected));
      });
    },
  };
}
