/** Ranks side by side: the allocated memory of each on one scale, peaks, and the first cause. */

import { fitSurface, createSurface, type Surface } from "../widgets/canvas.js";
import { fill, h } from "../widgets/dom.js";
import { formatBytes, formatCount, formatShare } from "../widgets/format.js";
import type { DeviceModel, Report, TraceModel } from "../data/model.js";
import { themeColor } from "../shell/theme.js";
import type { Context, MountedView, View } from "../view.js";
import { largest } from "./timeline/chart_data.js";

export const ranksView: View = {
  id: "ranks",
  title: "Ranks",
  isAvailable: (model) => (model.report.ranks?.rows?.length ?? 0) > 1,
  mount: (root, context) => new RanksView(root, context),
};

/** Rows beyond this are not drawn; the note says so. */
const MOST_ROWS = 256;
const SPARK_HEIGHT = 34;

interface Spark {
  surface: Surface;
  trace: TraceModel;
  device: DeviceModel;
}

class RanksView implements MountedView {
  private readonly summary = h("div", { class: "ranks-summary" });
  private readonly body = h("tbody");
  private readonly note = h("p", { class: "muted" });
  private sparks: Spark[] = [];

  constructor(root: HTMLElement, private readonly context: Context) {
    const names = ["Rank", "Allocated over the run", "Peak allocated", "To the median",
      "Peak reserved", "At the end", "Growth"];
    const head = names.map((name, index) =>
      h("th", { scope: "col", class: index > 1 ? "number" : null }, name));
    root.append(h(
      "div",
      { class: "card" },
      h("h2", {}, "Ranks side by side"),
      this.summary,
      h("div", { class: "table-frame" }, h(
        "table",
        { class: "ranks" },
        h("thead", {}, h("tr", {}, ...head)),
        this.body,
      )),
      this.note,
    ));
    this.build();
  }

  update(): void {
    const scale = Math.max(
      1,
      ...this.sparks.map(({ device }) => largest(device.column(device.data.series.live_max))),
    );
    const end = Math.max(1, ...this.sparks.map(({ trace }) => trace.data.end_ns));
    for (const spark of this.sparks) drawSpark(spark, scale, end);
  }

  private build(): void {
    const { ranks } = this.context.model.report;
    this.drawSummary(ranks);
    const rows = ranks.rows.slice(0, MOST_ROWS) as Report[];
    fill(this.body, ...rows.map((row, index) => this.drawRow(ranks, row, index)));
    const parts = ["All curves have the same scale of bytes and time, since each recording began."];
    if (ranks.rows.length > MOST_ROWS) {
      parts.push(`Shown are ${MOST_ROWS} of ${formatCount(ranks.rows.length)} rows.`);
    }
    if (ranks.aligned_by) parts.push("First causes are compared by step number.");
    else parts.push("The steps of the ranks cannot be aligned.");
    this.note.textContent = parts.join(" ");
  }

  private drawSummary(ranks: Report): void {
    const worst = ranks.rows[ranks.worst];
    const lines: HTMLElement[] = [];
    if (worst) {
      const excess = `${formatShare(ranks.excess, 1)} above the median`;
      lines.push(h(
        "p",
        {},
        `Highest peak: ${rowName(worst)} with ${formatBytes(worst.peak_live_bytes)}, ${excess} of `
          + `${formatBytes(ranks.median_peak_live_bytes)}.`,
      ));
    }
    const cause = ranks.first_cause;
    if (cause) {
      const first = ranks.rows[cause.row];
      const lead = cause.lead_steps === null
        ? "no other rank grows"
        : `${formatCount(cause.lead_steps)} steps before another rank`;
      const button = h("button", { class: "link" }, siteName(cause.site));
      button.addEventListener("click", () =>
        this.context.open("leaks", { trace: first.trace, site: cause.site.id }));
      const text = `First cause (confidence ${cause.confidence}): ${rowName(first)} grows since `
        + `step ${formatCount(cause.step)}, ${lead}, at `;
      lines.push(h("p", {}, text, button));
    }
    for (const more of (ranks.more_by_site ?? []).slice(0, 3)) {
      const bytes = formatBytes(more.bytes);
      lines.push(h("p", {}, `${rowName(worst)} held ${bytes} more at ${siteName(more.site)}.`));
    }
    if (ranks.missing_ranks) {
      lines.push(h("p", {}, `${formatCount(ranks.missing_ranks)} ranks have no trace.`));
    }
    fill(this.summary, ...lines);
  }

  private drawRow(ranks: Report, row: Report, index: number): HTMLElement {
    const trace = this.context.model.traces[row.trace];
    const deviceIndex = trace?.devices.findIndex((each) => each.data.ordinal === row.device) ?? -1;
    const name = h("button", { class: "link" }, rowName(row));
    name.disabled = deviceIndex < 0;
    name.addEventListener("click", () =>
      this.context.open("timeline", { trace: row.trace, device: deviceIndex }));
    const chart = h("div", { class: "spark" });
    if (trace && deviceIndex >= 0) {
      const label = `${rowName(row)}: peak ${formatBytes(row.peak_live_bytes)}`;
      const surface = createSurface(chart, label);
      this.sparks.push({ surface, trace, device: trace.devices[deviceIndex] });
    }
    const ratio = ranks.median_peak_live_bytes > 0
      ? row.peak_live_bytes / ranks.median_peak_live_bytes - 1
      : null;
    const sign = ratio !== null && ratio >= 0 ? "+" : "";
    const cells = [
      formatBytes(row.peak_live_bytes),
      ratio === null ? "unknown" : `${sign}${Math.round(ratio * 100)}%`,
      formatBytes(row.peak_reserved_bytes),
      formatBytes(row.end_live_bytes),
      growthOf(row),
    ];
    return h(
      "tr",
      { class: index === ranks.worst && ranks.excess > 0 ? "worst" : null },
      h("th", { scope: "row" }, name),
      h("td", {}, chart),
      ...cells.map((text) => h("td", { class: "number" }, text)),
    );
  }
}

function rowName(row: Report): string {
  const name = row.rank === null ? `process ${row.pid ?? "unknown"}` : `rank ${row.rank}`;
  const host = row.host ? ` on ${row.host}` : "";
  return `${name}${host}, GPU ${row.device}`;
}

/** "4.00 MiB/step since step 12"; empty without leaks. */
function growthOf(row: Report): string {
  if (row.bytes_per_step === null) return "";
  const first = row.first_growth_step;
  const since = first === null ? "" : ` since step ${formatCount(first)}`;
  return `${formatBytes(Math.round(row.bytes_per_step))}/step${since}`;
}

function siteName(site: Report): string {
  return `${site.file}:${site.line} in ${site.function}()`;
}

/** Least and most live bytes of each column of pixels. */
function drawSpark({ surface, trace, device }: Spark, scale: number, end: number): void {
  fitSurface(surface, SPARK_HEIGHT);
  const { context, width, height } = surface;
  const { series } = device.data;
  const least = device.column(series.live_min);
  const most = device.column(series.live_max);
  const shown = Math.min(width, Math.ceil((trace.data.end_ns / end) * width));
  context.fillStyle = themeColor("accent");
  for (let x = 0; x < shown; x++) {
    const binAt = (column: number) =>
      Math.floor(((column / width) * end - series.start_ns) / series.width_ns);
    const first = Math.min(Math.max(binAt(x), 0), most.length - 1);
    const last = Math.min(Math.max(binAt(x + 1), first + 1), most.length);
    let low = Infinity;
    let high = 0;
    for (let bin = first; bin < last; bin++) {
      low = Math.min(low, least[bin]);
      high = Math.max(high, most[bin]);
    }
    const top = (high / scale) * (height - 2);
    const floor = (low / scale) * (height - 2);
    context.globalAlpha = 0.45;
    context.fillRect(x, height - top, 1, top - floor);
    context.globalAlpha = 1;
    context.fillRect(x, height - floor, 1, floor);
  }
}
