/** The table of call sites: bytes at the peak, at the end, and in the selected time. */

import { withOptions } from "./options.js";
import { siteLink } from "./site_link.js";
import { viewLink } from "../widgets/card.js";
import { fill, h, on, swatch } from "../widgets/dom.js";
import { download, toCsv } from "../widgets/download.js";
import { formatBytes, formatCount, formatNumberOf } from "../widgets/format.js";
import type { PageSite } from "../data/page_data.js";
import { selectedDevice, selectedMoment, selectedWindow, sumBySite } from "../shell/selection.js";
import type { Selected } from "../shell/selection.js";
import { describeMoment } from "../shell/selection_bar.js";
import { totalsAt, totalsAtEnd, totalsAtPeak, type SiteTotals } from "../data/site_totals.js";
import { createTable, type SortedTable, type TableColumn } from "../widgets/table.js";
import type { Context, MountedView, View } from "../view.js";

export const sitesView: View = {
  id: "sites",
  title: "Call sites",
  isAvailable: (model) => model.traces.some((trace) => trace.sites.length > 0),
  mount: (root, context) => new SitesView(root, context),
};

interface Row {
  index: number;
  site: PageSite;
}

/** A column of amounts by site; null if the page does not know them. */
interface Amounts {
  key: string;
  title: string;
  hint: string;
  values: Float64Array | null;
  isBytes: boolean;
}

class SitesView implements MountedView {
  readonly #search = h("input", {
    type: "search",
    placeholder: "Filter call sites",
    "aria-label": "Filter call sites by file, function, source or category",
  });
  readonly #count = h("span", { class: "muted", role: "status" });
  readonly #hint = h("p", "muted");
  readonly #table: SortedTable<Row>;
  #columns: TableColumn<Row>[] = [];
  #amounts: Amounts[] = [];
  readonly #context: Context;

  constructor(root: HTMLElement, context: Context) {
    this.#context = context;
    const csv = h("button", { title: "Download the shown rows" }, "CSV");
    on(csv, "click", () => this.#downloadCsv());
    on(this.#search, "input", () => this.#setOption("filter", this.#search.value));
    this.#table = createTable<Row>({
      caption: "Call sites",
      columns: [],
      limit: 200,
      sortKey: context.selection().options.sort ?? "peak",
      onSort: (key) => this.#setOption("sort", key),
      onRow: ({ site }) => this.#toggle(site.id),
      isSelected: ({ site }) => context.selection().site === site.id,
    });
    root.append(h(
      "div",
      "card sites",
      h(
        "div",
        "chart-toolbar",
        this.#search,
        this.#count,
        h("span", "spacer"),
        csv,
      ),
      this.#hint,
      this.#table.element,
    ));
  }

  update(): void {
    const selection = this.#context.selection();
    const selected = selectedDevice(this.#context.model, selection);
    if (!selected) return;
    this.#amounts = this.#collectAmounts(selected);
    this.#columns = [...siteColumns(this.#context), ...this.#amounts.map(amountColumn)];
    const filter = selection.options.filter ?? "";
    if (this.#search.value !== filter) this.#search.value = filter;
    const all = selected.trace.sites
      .map((site, index) => ({ site, index }))
      .filter(({ index }) => this.#amounts.some(({ values }) => values && values[index] > 0));
    const rows = all.filter(({ site }) => matches(site, filter));
    this.#table.update(rows, this.#columns);
    this.#count.textContent = rows.length === all.length
      ? formatNumberOf(all.length, "call site")
      : `${formatCount(rows.length)} of ${formatNumberOf(all.length, "call site")}`;
    this.#drawHint(selected);
  }

  #collectAmounts({ trace, device }: Selected): Amounts[] {
    const { report } = this.#context.model;
    const selection = this.#context.selection();
    const moment = selectedMoment(selection);
    const window = selectedWindow(selection);
    const peak = totalsAtPeak(report, trace, device);
    const end = totalsAtEnd(trace, device);
    const amounts: Amounts[] = [];
    const add = (key: string, title: string, hint: string, totals: SiteTotals | null) =>
      amounts.push({ key, title, hint, values: totals?.bytes ?? null, isBytes: true });
    const addBlocks = (key: string, title: string, hint: string, totals: SiteTotals | null) =>
      amounts.push({ key, title, hint, values: totals?.count ?? null, isBytes: false });
    add("peak", "At the peak", "Allocated bytes at the peak of the device", peak);
    add("end", "At the end", "Allocated bytes when the program finished", end);
    if (window) {
      const from = device.nearestEdge(window.from_ns);
      const to = device.nearestEdge(window.to_ns);
      const kept = sumBySite(trace, device.keptBetween(from, to));
      const churn = sumBySite(trace, device.churnBetween(from, to));
      add("kept", "New and live", "Allocated in the window and still live at its end", kept);
      addBlocks("kept_blocks", "Blocks", "Blocks allocated in the window and still live at its end", kept);
      add("churn", "Freed again", "Allocated and freed in the window", churn);
      addBlocks("churn_blocks", "Blocks", "Blocks allocated and freed in the window", churn);
    } else if (moment !== null) {
      const live = totalsAt(trace, device, moment);
      add("live", "At the moment", "Allocated bytes at the selected moment", live);
      addBlocks("live_blocks", "Blocks", "Blocks allocated at the selected moment", live);
    } else {
      addBlocks("blocks", "Blocks", "Blocks at the peak", peak);
    }
    return amounts;
  }

  #drawHint({ trace, device }: Selected): void {
    const selection = this.#context.selection();
    const window = selectedWindow(selection);
    const moment = selectedMoment(selection);
    const edge = (time_ns: number) =>
      describeMoment(trace, device.edges()[device.nearestEdge(time_ns)]);
    if (window) {
      const span = `${edge(window.from_ns)} and ${edge(window.to_ns)}`;
      fill(this.#hint, `Kept and freed are exact between ${span}.`);
    } else if (moment !== null) {
      const isKeyframe = device.data.keyframes.some((each) => each.time_ns === moment);
      const at = isKeyframe ? describeMoment(trace, moment) : edge(moment);
      fill(this.#hint, `The selected moment is exact at ${at}.`);
    } else {
      const link = viewLink("timeline", "timeline", this.#context, "");
      fill(this.#hint, "Select a moment or a window in the ", link, " to see its bytes here.");
    }
  }

  #toggle(id: string): void {
    this.#context.visit({ site: this.#context.selection().site === id ? null : id });
  }

  #setOption(key: string, value: string): void {
    this.#context.select(withOptions(this.#context, { [key]: value }));
  }

  #downloadCsv(): void {
    const head = ["site", "file", "line", "function", "category"];
    const titles = this.#amounts.map(({ key, isBytes }) => (isBytes ? `${key}_bytes` : key));
    const rows = this.#table.sorted().map(({ site, index }) => [
      site.id,
      site.file,
      site.line,
      site.function,
      site.category,
      ...this.#amounts.map(({ values }) => (values ? values[index] : null)),
    ]);
    download("call-sites.csv", "text/csv", toCsv([...head, ...titles], rows));
  }
}

function siteColumns(context: Context): TableColumn<Row>[] {
  return [
    {
      key: "site",
      title: "Call site",
      value: ({ site }) => site.label,
      cell: ({ site, index }) => h(
        "div",
        "site-cell",
        swatch(context.color(index)),
        h(
          "div",
          {},
          h("span", { title: site.file }, siteLink(context, site.id, site.label)),
          site.source ? h("code", "source-line", site.source.trim()) : null,
        ),
      ),
    },
    {
      key: "category",
      title: "Category",
      hint: "Category of most of its bytes at the peak",
      value: ({ site }) => site.category,
      cell: ({ site }) => site.category?.replace(/_/g, " ") ?? "",
    },
  ];
}

function amountColumn({ key, title, hint, values, isBytes }: Amounts): TableColumn<Row> {
  const format = isBytes ? formatBytes : formatCount;
  return {
    key,
    title,
    hint,
    isNumber: true,
    value: ({ index }) => (values ? values[index] : null),
    cell: ({ index }) => {
      const value = values ? values[index] : null;
      const isZero = value === 0;
      return h("span", { class: isZero ? "muted" : null }, isZero ? "0" : format(value));
    },
  };
}

/** All words of the filter must occur. */
function matches(site: PageSite, filter: string): boolean {
  const text = [site.label, site.file, site.function, site.source, site.category]
    .join("\n")
    .toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}
