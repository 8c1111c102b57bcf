/** The timeline: memory over steps or time, stacked by call site, category, stream or pool. */

import { withOptions } from "./options.js";
import { siteLink } from "./site_link.js";
import { clamp } from "../widgets/clamp.js";
import { createAxis, type Axis } from "../widgets/axis.js";
import { type Card, showCards } from "../widgets/card.js";
import { fill, h, liveRegion, on, swatch } from "../widgets/dom.js";
import { download } from "../widgets/download.js";
import { formatBytes, formatNumberOf } from "../widgets/format.js";
import type { Model } from "../data/model.js";
import { selectedDevice, siteIndex, type Selected } from "../shell/selection.js";
import type { Context, MountedView, Selection, View } from "../view.js";
import { createBrush } from "./timeline/brush.js";
import { Chart } from "./timeline/chart.js";
import { createChartData, highestBin, largest, levelsBetween } from "./timeline/chart_data.js";
import type { Stacking } from "./timeline/chart_data.js";
import { fillDataTable, timelineCsv } from "./timeline/data_table.js";
import { collectEvents } from "./timeline/events.js";
import { listenToChart } from "./timeline/input.js";
import { createLegend } from "./timeline/legend.js";
import { bandOrder } from "./timeline/raster.js";
import { createToolbar } from "./timeline/toolbar.js";
import { createTooltip } from "./timeline/tooltip.js";

export const timelineView: View = {
  id: "timeline",
  title: "Timeline",
  isAvailable: (model: Model) => model.traces.some((trace) => trace.devices.length > 0),
  mount: (root, context) => new Timeline(root, context),
};

const RANGE_DELAY_MS = 200;

class Timeline implements MountedView {
  readonly #chart = new Chart();
  readonly #brush = createBrush(this.#chart);
  readonly #legend = createLegend(
    (band) => this.#toggleSite(band.site),
    (band) => this.#linkOf(band.site),
  );
  readonly #tooltip = createTooltip();
  readonly #toolbar;
  readonly #note = h("p", "muted chart-note");
  readonly #table = h("div", {
    class: "table-frame scrolled",
    role: "region",
    tabindex: "0",
    "aria-label": "Memory in the shown part of the run",
  });
  readonly #details = h("details", {}, h("summary", {}, "Table"), this.#table);
  readonly #spoken = liveRegion();
  /** The difference from the trace that the page compares with. */
  readonly #comparison = h("section", { class: "card", hidden: true });
  #shownComparison: Card[] | null = null;
  #axis: Axis | null = null;
  /** What the chart's data was made for. */
  #key = "";
  /** The shown range that the URL has, as far as this view followed it. */
  #appliedZoom = "";
  #rangeTimer: ReturnType<typeof setTimeout> | undefined;
  readonly #context: Context;

  constructor(root: HTMLElement, context: Context) {
    this.#context = context;
    this.#toolbar = createToolbar(context, {
      reset: () => this.#reset(),
      zoomToSelection: () => this.#zoomToSelection(),
      csv: () => this.#chart.data
        && download("timeline.csv", "text/csv", timelineCsv(this.#chart.data)),
    });
    const frame = h("div", "chart-frame", this.#chart.element, this.#tooltip.element);
    const left = h("div", "chart-column", frame, this.#brush.element, this.#note);
    root.append(
      h(
        "div",
        "card timeline",
        this.#toolbar.element,
        h("div", "timeline-body", left, this.#legend.element),
        this.#details,
        this.#spoken,
      ),
      this.#comparison,
    );
    this.#chart.onRange = () => this.#rangeChanged();
    on(this.#details, "toggle", () => this.#drawTable());
    listenToChart(this.#chart, {
      snap: (time_ns) => this.#snap(time_ns),
      select: (from_ns, to_ns) => context.visit({ from_ns, to_ns }),
      reset: () => this.#reset(),
      cursorMoved: (y) => this.#showCursor(y),
    });
  }

  #showComparison({ trace, device }: Selection): void {
    const { comparison } = this.#context.model.data.cards[trace].devices[device];
    if (comparison === this.#shownComparison) return;
    this.#shownComparison = comparison;
    this.#comparison.hidden = comparison.length === 0;
    showCards(this.#comparison, comparison, this.#context);
  }

  update(): void {
    const selected = selectedDevice(this.#context.model, this.#context.selection());
    if (!selected) return;
    this.#updateData(selected);
    const selection = this.#context.selection();
    this.#showComparison(selection);
    const chart = this.#chart;
    if (!chart.data) return;
    const site = siteIndex(selected.trace, selection.site);
    const band = site === null ? -1 : chart.data.bands.findIndex((each) => each.site === site);
    const settings = this.#toolbar.settings();
    const capacity = selected.device.data.total_bytes;
    chart.setOptions(
      {
        selected: band,
        showsReserved: settings.showsReserved,
        showsDevice: settings.showsDevice,
        capacity_bytes: capacity,
      },
      selection,
      clamp(window.innerHeight - 330, 260, 620),
    );
    this.#legend.setSelected(band);
    this.#updateToolbar(selected);
    chart.drawNow();
    this.#legend.element.style.maxHeight = `${chart.surface.height + 40}px`;
    this.#brush.draw();
    this.#legend.sort(this.#highestShown());
    this.#showCursor(null);
    this.#drawNote(selected, site !== null && band < 0);
    this.#drawTable();
  }

  /** A way to stack is offered if it has at least two groups. */
  #updateToolbar(selected: Selected | null): void {
    const groups = selected?.device.data.bins.groups.filter((by) => by.groups.length > 1) ?? [];
    this.#toolbar.update(this.#chart.isZoomed, groups.map(({ by }) => by));
  }

  #updateData({ trace, device }: Selected): void {
    const { axis: unit, options } = this.#context.selection();
    const stacking = (options.stack ?? "site") as Stacking;
    const key = [trace.index, device.data.ordinal, unit, stacking].join("/");
    const zoom = options.zoom ?? "";
    const isNew = key !== this.#key;
    if (isNew) {
      this.#key = key;
      this.#axis = createAxis(trace, unit);
      const data = createChartData(trace, device, stacking, (site) => this.#context.color(site));
      this.#chart.setData(data, collectEvents(this.#context.model, trace, device), this.#axis);
      this.#legend.setBands(data.bands);
      const { surface } = this.#chart;
      surface.canvas.setAttribute("aria-label", describeChart(data.levels.live_max, data.live));
    }
    if (isNew || zoom !== this.#appliedZoom) this.#applyZoom(zoom);
  }

  /** The shown range as it is in the URL; empty for the whole run. */
  #zoomText(): string {
    if (!this.#chart.isZoomed) return "";
    const { from_ns, to_ns } = this.#chart.shownTime;
    return `${from_ns}-${to_ns}`;
  }

  #applyZoom(text: string): void {
    const match = /^(\d+)-(\d+)$/.exec(text);
    const chart = this.#chart;
    const axis = this.#axis;
    this.#appliedZoom = text;
    if (!axis) return;
    if (match) {
      const range = { from: axis.position(Number(match[1])), to: axis.position(Number(match[2])) };
      chart.setRange(range, false);
    } else {
      chart.setRange(chart.whole, false);
    }
  }

  #rangeChanged(): void {
    this.#brush.draw();
    this.#updateToolbar(selectedDevice(this.#context.model, this.#context.selection()));
    this.#tooltip.hide();
    clearTimeout(this.#rangeTimer);
    this.#rangeTimer = setTimeout(() => {
      this.#rangeTimer = undefined;
      const zoom = this.#zoomText();
      this.#appliedZoom = zoom;
      this.#context.select(withOptions(this.#context, { zoom }));
    }, RANGE_DELAY_MS);
  }

  #snap(time_ns: number): number {
    const selected = selectedDevice(this.#context.model, this.#context.selection());
    if (!selected) return Math.round(time_ns);
    const { device, trace } = selected;
    const edge = device.edges()[device.nearestEdge(time_ns)];
    return clamp(edge, 0, trace.data.end_ns);
  }

  #reset(): void {
    this.#chart.setRange(this.#chart.whole);
    this.#context.select({ from_ns: null, to_ns: null });
  }

  #zoomToSelection(): void {
    const { from_ns, to_ns } = this.#context.selection();
    if (from_ns === null || to_ns === null || !this.#axis) return;
    this.#chart.setRange({ from: this.#axis.position(from_ns), to: this.#axis.position(to_ns) });
  }

  #linkOf(site: number | null): HTMLElement | null {
    const selected = selectedDevice(this.#context.model, this.#context.selection());
    if (!selected || site === null) return null;
    const { id, label } = selected.trace.sites[site];
    const link = siteLink(this.#context, id, "stack");
    link.setAttribute("aria-label", `Stack of ${label}`);
    return link;
  }

  #toggleSite(site: number | null): void {
    const selected = selectedDevice(this.#context.model, this.#context.selection());
    if (!selected || site === null) return;
    const { id } = selected.trace.sites[site];
    this.#context.visit({ site: this.#context.selection().site === id ? null : id });
  }

  /** The bin with the most live bytes of those in the shown part of the run. */
  #highestShown(): number {
    const { data, shownTime: { from_ns, to_ns } } = this.#chart;
    return highestBin(data!, from_ns, to_ns);
  }

  /** Shows the values at the cursor, or at the peak without one. */
  #showCursor(y: number | null): void {
    const chart = this.#chart;
    const axis = this.#axis;
    const { data, style } = chart;
    if (!data || !style || !axis || data.bins === 0) return;
    if (chart.cursor === null) {
      this.#tooltip.hide();
      const when = chart.isZoomed ? "At the peak of the shown part" : "At the peak";
      this.#legend.setValues(this.#highestShown(), when, -1);
      return;
    }
    const x = chart.xOf(chart.cursor);
    const begin = chart.timeAt(Math.floor(x));
    const end = Math.max(chart.timeAt(Math.floor(x) + 1), begin + 1);
    const bin = highestBin(data, begin, end);
    const level = levelsBetween(data.levels, begin, end);
    const under = y === null ? -1 : bandAt(chart, bin, chart.bytesAt(y));
    const when = axis.describe(data.time_ns[bin]);
    this.#legend.setValues(bin, `At ${when}`, under);
    const band = under < 0 ? null : data.bands[under];
    this.#tooltip.show(x, style, { when, level, span_ns: level.span_ns, band, bin });
    if (y === null) {
      const range = `${formatBytes(level.live_min)} to ${formatBytes(level.live_max)}`;
      this.#spoken.textContent = `${when}: ${range} allocated, `
        + `${formatBytes(level.reserved_max)} reserved`;
    }
  }

  #drawNote({ trace, device }: Selected, isSiteHidden: boolean): void {
    const { data, events } = this.#chart;
    if (!data || !events) return;
    const key = (name: string, text: string) =>
      h("span", "line-key", swatch(`var(--${name})`), text);
    const settings = this.#toolbar.settings();
    const parts: (Node | string | false)[] = [
      settings.showsReserved && key("reserved", "reserved, most"),
      settings.showsDevice && key("device", "driver, most"),
      "Each column shows the moment of its most allocated memory.",
    ];
    const capacity = device.data.total_bytes;
    const top = this.#chart.style?.top_bytes ?? 0;
    if (capacity !== null && capacity > top) {
      parts.push(` The GPU has ${formatBytes(capacity)}, above the chart.`);
    }
    if (data.bins < data.levels.live_max.length) {
      const moments = formatNumberOf(data.bins, "moment");
      parts.push(` Call sites are known at ${moments}; what is pale is above the memory of its `
        + "column.");
    }
    if (events.hiddenPhases.length > 0) {
      parts.push(` Phases without a lane: ${events.hiddenPhases.join(", ")}.`);
    }
    if (isSiteHidden) parts.push(" The selected call site is among the others.");
    if (trace.data.steps === null) parts.push(" The trace has no steps.");
    fill(this.#note, ...parts);
  }

  #drawTable(): void {
    const { data } = this.#chart;
    if (!this.#details.open || !data || !this.#axis) return;
    const { from_ns, to_ns } = this.#chart.shownTime;
    fillDataTable(this.#table, data, this.#axis, from_ns, to_ns);
  }
}

function describeChart(live_max: Float64Array, live: Float64Array): string {
  return `Allocated memory over the run: at most ${formatBytes(largest(live_max))}, `
    + `in ${live.length} bins. Arrow keys move the cursor.`;
}

/** The band at a height of the stack; -1 above it. */
function bandAt(chart: Chart, bin: number, bytes: number): number {
  const { data, style } = chart;
  if (!data || !style || bytes < 0) return -1;
  let sum = 0;
  for (const band of bandOrder({ bands: data.bands, selected: style.selected })) {
    sum += data.bands[band].values[bin];
    if (bytes < sum) return band;
  }
  return -1;
}
