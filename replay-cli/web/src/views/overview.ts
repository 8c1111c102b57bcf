/** The overview: what is wrong and what to do, then where the memory is at the peak. */

import { createAxis } from "../widgets/axis.js";
import { createSurface, fitSurface, type Surface } from "../widgets/canvas.js";
import { fill, h } from "../widgets/dom.js";
import { collectFindings } from "../findings.js";
import {
  formatBytes, formatCount, formatNumberOf, formatShare, formatTime,
} from "../widgets/format.js";
import { shortenFiles } from "../wording/sites.js";
import type { Report } from "../data/model.js";
import { selectedDevice, siteIndex, type Selected } from "../shell/selection.js";
import { describeMoment } from "../shell/selection_bar.js";
import type { Context, MountedView, View } from "../view.js";
import { drawDeviceBar } from "./overview/device_bar.js";
import { drawFindings } from "./overview/finding_cards.js";
import { createChartData, largest, type ChartData } from "./timeline/chart_data.js";
import { siteLink } from "./site_link.js";
import { collectEvents, type Events } from "./timeline/events.js";
import { drawChart } from "./timeline/paint.js";

export const overviewView: View = {
  id: "overview",
  title: "Overview",
  isAvailable: () => true,
  mount: (root, context) => new Overview(root, context),
};

const PREVIEW_HEIGHT = 190;
const LARGEST_SITES = 8;

class Overview implements MountedView {
  private readonly losses = h("div", { class: "losses", role: "alert", hidden: true });
  private readonly findings = h("section", { class: "findings", "aria-label": "Findings" });
  private readonly figures = h("section", { class: "card figures" });
  private readonly preview = h("section", { class: "card preview" });
  private readonly device = h("section", { class: "card device-card" });
  private readonly sites = h("section", { class: "card" });
  private readonly surface: Surface;
  private readonly previewLink;
  private data: ChartData | null = null;
  private events: Events | null = null;
  private key = "";

  constructor(root: HTMLElement, private readonly context: Context) {
    this.previewLink = h("a", { href: "#timeline", class: "more-link" }, "Open the timeline");
    this.previewLink.addEventListener("click", (event) => this.openTimeline(event));
    const chart = h("div", { class: "preview-chart" });
    const title = h("h2", {}, "Allocated memory");
    this.preview.append(h("div", { class: "card-head" }, title, this.previewLink), chart);
    this.surface = createSurface(chart, "Allocated memory over the run");
    this.surface.canvas.addEventListener("click", (event) => this.openTimeline(event));
    const side = h("div", { class: "overview-side" }, this.figures);
    const main = h("div", { class: "overview-main" }, this.findings, this.preview);
    root.append(
      this.losses,
      h("div", { class: "overview" }, main, side),
      this.device,
      this.sites,
    );
  }

  update(): void {
    const { model } = this.context;
    const selection = this.context.selection();
    const selected = selectedDevice(model, selection);
    const key = `${selection.trace}/${selection.device}/${selection.axis}`;
    if (key !== this.key) {
      this.key = key;
      this.drawLosses(selection.trace);
      const trace = model.traces[selection.trace];
      const sourceOf = (id: string) => {
        const index = trace ? siteIndex(trace, id) : null;
        return index === null ? null : trace.sites[index].source;
      };
      const findings = collectFindings(model.report, selection.trace, sourceOf);
      for (const finding of findings) finding.summary = shortenFiles(trace, finding.summary);
      drawFindings(this.findings, findings, this.context);
      this.preview.hidden = this.device.hidden = this.sites.hidden = selected === null;
      if (selected) {
        const color = (site: number | null) => this.context.color(site);
        this.data = createChartData(selected.trace, selected.device, "site", color);
        this.events = collectEvents(model, selected.trace, selected.device);
        this.drawDevice(selected);
      }
      this.drawFigures(selection.trace, selected);
    }
    if (selected) {
      this.drawPreview(selected);
      this.drawSites(selected);
    }
  }

  /** What is missing in the trace stands above everything else. */
  private drawLosses(trace: number): void {
    const info = this.context.model.report.traces?.[trace];
    const incomplete: { message: string }[] = info?.incomplete ?? [];
    this.losses.hidden = !info || info.complete;
    fill(
      this.losses,
      h("strong", {}, "The trace is incomplete."),
      h("ul", {}, ...incomplete.map((each) => h("li", {}, each.message))),
    );
  }

  private drawFigures(trace: number, selected: Selected | null): void {
    const { report } = this.context.model;
    const info = report.traces?.[trace];
    const device = selected && deviceOf(report, selected);
    const rows: [string, string][] = [];
    if (device) {
      rows.push(
        ["Peak at", selected ? describeMoment(selected.trace, device.peak.time_ns) : ""],
        ["Memory of the GPU", formatBytes(device.total_bytes)],
        ["Peak allocated, share", formatShare(device.peak.live_bytes, device.total_bytes)],
      );
    }
    const steps = selected?.trace.data.steps?.count ?? 0;
    const source = selected?.trace.data.steps?.source;
    rows.push(
      ["Steps", steps > 0 ? `${formatCount(steps)}${source ? ` (${source})` : ""}` : "none found"],
      ["Duration", formatTime(info?.duration_ns)],
    );
    const terms = rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
    const name = device?.name ? `: ${device.name}` : "";
    const title = device ? `GPU ${device.device}${name}` : "The run";
    fill(
      this.figures,
      h("h2", {}, title),
      device ? levelTable(device) : null,
      h("dl", {}, ...terms),
    );
  }

  private drawPreview({ trace, device }: Selected): void {
    const { data, events, surface } = this;
    if (!data || !events) return;
    fitSurface(surface, PREVIEW_HEIGHT);
    const axis = createAxis(trace, this.context.selection().axis);
    const most = Math.max(largest(data.levels.live_max), largest(data.levels.reserved_max), 1);
    drawChart(surface, data, events, {
      axis,
      range: { from: 0, to: axis.position(data.end_ns) },
      plot: { left: 66, top: 4, width: surface.width - 70, height: PREVIEW_HEIGHT - 26 },
      top_bytes: most * 1.15,
      selected: -1,
      showsReserved: true,
      showsDevice: false,
      capacity_bytes: device.data.total_bytes,
    });
    const peak = formatBytes(largest(data.levels.live_max));
    const label = `Allocated memory over the run, at most ${peak}`;
    surface.canvas.setAttribute("aria-label", label);
  }

  private openTimeline(event: Event): void {
    event.preventDefault();
    this.context.open("timeline");
  }

  private drawDevice(selected: Selected): void {
    const device = deviceOf(this.context.model.report, selected);
    this.device.hidden = !device;
    if (device) drawDeviceBar(this.device, this.context.model.report, device);
  }

  private drawSites({ trace, device }: Selected): void {
    const { report } = this.context.model;
    const peak = report.peak?.find((each: Report) =>
      each.trace === trace.index && each.device === device.data.ordinal);
    this.sites.hidden = !peak;
    if (!peak) return;
    const rows = peak.sites.slice(0, LARGEST_SITES);
    const all = `See ${formatNumberOf(peak.sites.length, "call site")}`;
    const link = h("a", { href: "#sites", class: "more-link" }, all);
    link.addEventListener("click", (event) => {
      event.preventDefault();
      this.context.open("sites");
    });
    const most = rows[0]?.bytes ?? 1;
    const body = rows.map((entry: Report) => {
      const index = siteIndex(trace, entry.site.id);
      const button = siteLink(trace, entry.site, (site) => this.context.open("timeline", { site }));
      const bar = h("span", { class: "bar" });
      bar.style.width = `${(entry.bytes / most) * 100}%`;
      bar.style.background = this.context.color(index);
      const source = index === null ? null : trace.sites[index].source;
      return h(
        "tr",
        {},
        h("td", {}, button, source ? h("code", { class: "source-line" }, source) : null),
        h("td", { class: "bar-cell", "aria-hidden": "true" }, bar),
        h("td", { class: "number" }, formatBytes(entry.bytes)),
        h("td", { class: "number" }, formatShare(entry.bytes, peak.live_bytes)),
        h("td", { class: "number" }, formatCount(entry.blocks)),
        h("td", {}, (entry.categories?.[0]?.category ?? "").replace(/_/g, " ")),
      );
    });
    const head = ["Call site", "", "Bytes", "Share", "Blocks", "Category"].map((text, index) =>
      text === "" ? h("td", {})
        : h("th", { scope: "col", class: index > 1 && index < 5 ? "number" : null }, text));
    const title = `Largest call sites at the peak, ${describeMoment(trace, peak.time_ns)}`;
    fill(
      this.sites,
      h("div", { class: "card-head" }, h("h2", {}, title), link),
      h("div", { class: "table-frame" }, h(
        "table",
        { class: "largest" },
        h("thead", {}, h("tr", {}, ...head)),
        h("tbody", {}, ...body),
      )),
    );
  }
}

export function deviceOf(report: Report, { trace, device }: Selected): Report | undefined {
  return report.devices?.find((each: Report) =>
    each.trace === trace.index && each.device === device.data.ordinal);
}

/** Allocated, reserved and driver memory at the peak and at the end. */
function levelTable(device: Report): HTMLElement {
  const { peak, end } = device;
  const rows: [string, number | null, number | null][] = [
    ["Allocated", peak.live_bytes, end.live_bytes],
    ["Reserved", peak.reserved_bytes, end.reserved_bytes],
    ["Driver", peak.device_bytes, end.device_bytes],
  ];
  const isEarly = end.moment === "before_teardown";
  const hint = isEarly ? "Before interpreter teardown" : null;
  return h(
    "table",
    { class: "levels" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("td", {}),
        h("th", { scope: "col", class: "number" }, "At peak"),
        h("th", { scope: "col", class: "number", title: hint }, "At end"),
      ),
    ),
    h("tbody", {}, ...rows.map(([name, ...values]) => h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      ...values.map((bytes) => h("td", { class: "number figure" }, formatBytes(bytes))),
    ))),
  );
}
