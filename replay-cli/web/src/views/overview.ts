/** The overview: what is wrong and what to do, then where the memory is at the peak. */

import { createAxis } from "../widgets/axis.js";
import { createSurface, fitSurface, type Surface } from "../widgets/canvas.js";
import { type Card, showCards, viewLink } from "../widgets/card.js";
import { h, on } from "../widgets/dom.js";
import { copyButton } from "../widgets/copy_button.js";
import { download, safeName } from "../widgets/download.js";
import { formatBytes } from "../widgets/format.js";
import type { TraceCards } from "../data/page_data.js";
import { selectedDevice, type Selected } from "../shell/selection.js";
import type { Context, MountedView, View } from "../view.js";
import { drawPicture } from "./overview/chart_png.js";
import { createChartData, largest, type ChartData } from "./timeline/chart_data.js";
import { collectEvents, type Events } from "./timeline/events.js";
import { drawChart } from "./timeline/paint.js";

export const overviewView: View = {
  id: "overview",
  title: "Overview",
  isAvailable: () => true,
  mount: (root, context) => new Overview(root, context),
};

const PREVIEW_HEIGHT = 190;

class Overview implements MountedView {
  /** What is missing in the trace stands above everything else. */
  readonly #losses = h("div", { class: "losses", role: "alert", hidden: true });
  readonly #findings = h("section", { class: "findings", "aria-label": "Findings" });
  readonly #figures = h("section", "card figures");
  readonly #preview = h("section", "card preview");
  readonly #device = h("section", "card device-card");
  readonly #sites = h("section", "card");
  readonly #comparison = h("section", "card");
  /** Shown if the browser does not allow to copy it. */
  readonly #markdown = h("pre", { class: "text-report", tabindex: "0", hidden: true });
  readonly #surface: Surface;
  #data: ChartData | null = null;
  #events: Events | null = null;
  #key = "";
  readonly #context: Context;

  constructor(root: HTMLElement, context: Context) {
    this.#context = context;
    const link = viewLink("Open the timeline", "timeline", context);
    const chart = h("div", "preview-chart");
    const title = h("h2", {}, "Allocated memory");
    const png = h("button", { title: "Download the chart as a picture" }, "PNG");
    on(png, "click", () => this.#downloadPng());
    this.#preview.append(h("div", "card-head", title, h("span", "spacer"), link, png), chart);
    const copy = copyButton("Copy as Markdown", () => this.#cards().markdown, () => {
      this.#markdown.textContent = this.#cards().markdown;
      this.#markdown.hidden = false;
    });
    copy.title = "Findings, levels and largest call sites, for an issue";
    this.#surface = createSurface(chart, "Allocated memory over the run");
    on(this.#surface.canvas, "click", () => context.open("timeline"));
    const side = h("div", "overview-side", this.#figures);
    const actions = h("div", "overview-actions", copy, this.#markdown);
    const main = h("div", "overview-main", this.#findings, actions, this.#preview);
    root.append(
      this.#losses,
      h("div", "overview", main, side),
      this.#comparison,
      this.#device,
      this.#sites,
    );
  }

  update(): void {
    const { model } = this.#context;
    const selection = this.#context.selection();
    const selected = selectedDevice(model, selection);
    const key = `${selection.trace}/${selection.device}/${selection.axis}`;
    if (key !== this.#key) {
      this.#key = key;
      const { losses, findings, devices } = this.#cards();
      this.#markdown.hidden = true;
      this.#show(this.#losses, losses);
      this.#show(this.#findings, findings);
      const { figures, memory, sites, comparison } = devices[selection.device];
      this.#show(this.#figures, figures);
      this.#show(this.#device, memory);
      this.#show(this.#sites, sites);
      this.#show(this.#comparison, comparison);
      this.#preview.hidden = selected === null;
      if (selected) {
        const color = (site: number | null) => this.#context.color(site);
        this.#data = createChartData(selected.trace, selected.device, "site", color);
        this.#events = collectEvents(model, selected.trace, selected.device);
      }
    }
    if (selected) this.#drawPreview(selected);
  }

  #cards(): TraceCards {
    return this.#context.model.data.cards[this.#context.selection().trace];
  }

  #show(section: HTMLElement, cards: Card[]): void {
    section.hidden = cards.length === 0;
    showCards(section, cards, this.#context);
  }

  #drawPreview(selected: Selected): void {
    const surface = this.#surface;
    if (!this.#data) return;
    fitSurface(surface, PREVIEW_HEIGHT);
    this.#drawChart(selected, surface, PREVIEW_HEIGHT);
    const peak = formatBytes(largest(this.#data.levels.live_max));
    const label = `Allocated memory over the run, at most ${peak}`;
    surface.canvas.setAttribute("aria-label", label);
  }

  #drawChart({ trace, device }: Selected, surface: Surface, height: number): void {
    const data = this.#data;
    const events = this.#events;
    if (!data || !events) return;
    const axis = createAxis(trace, this.#context.selection().axis);
    const most = Math.max(largest(data.levels.live_max), largest(data.levels.reserved_max), 1);
    drawChart(surface, data, events, {
      axis,
      range: { from: 0, to: axis.position(data.end_ns) },
      plot: { left: 66, top: 4, width: surface.width - 70, height: height - 26 },
      top_bytes: most * 1.15,
      selected: -1,
      showsReserved: true,
      showsDevice: false,
      capacity_bytes: device.data.total_bytes,
    });
  }

  #downloadPng(): void {
    const data = this.#data;
    const selected = selectedDevice(this.#context.model, this.#context.selection());
    if (!data || !selected) return;
    const { trace, device } = selected;
    const peak = formatBytes(largest(data.levels.live_max));
    const canvas = drawPicture({
      title: `Allocated memory of GPU ${device.data.ordinal}, at most ${peak}`,
      subtitle: this.#cards().headline.program,
      data,
      draw: (surface, height) => this.#drawChart(selected, surface, height),
    });
    const name = safeName(trace.data.path, "-memory.png");
    canvas.toBlob((blob) => blob && download(name, "image/png", blob), "image/png");
  }
}
