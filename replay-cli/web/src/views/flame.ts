/** The flame graph: which call stacks hold, keep or churn memory, and how two moments differ. */

import { withOptions } from "./options.js";
import { createAxis } from "../widgets/axis.js";
import { type Child, fill, h, on, swatch } from "../widgets/dom.js";
import { createMomentStrip } from "../draw/moment_strip.js";
import { tableBehind } from "../draw/plain_table.js";
import { facts } from "../draw/tooltip.js";
import { formatByteChange, formatBytes, formatNumberOf, formatShare } from "../widgets/format.js";
import type { DeviceModel, TraceModel } from "../data/model.js";
import { selectedDevice, siteIndex } from "../shell/selection.js";
import type { Context, View } from "../view.js";
import { FlameChart } from "./flame/chart.js";
import { nodeFacts, nodeName } from "./flame/describe.js";
import { compareTraces, defaultMode, type Figures, findKeyframe, measure, type Mode }
  from "./flame/figures.js";
import { differenceColor } from "./flame/frame_colors.js";
import { createGraph, type Graph, lightStacks, searchGraph } from "./flame/graph.js";
import { frameFullPlace, frameName } from "./flame/names.js";
import { showSiteStacks } from "./flame/site_stacks.js";
import { differenceTable, siteTable, traceTable } from "./flame/site_table.js";
import { createToolbar, readSettings, type Settings } from "./flame/toolbar.js";
import { TreeCache } from "./flame/trees.js";
import { measureLabels } from "./flame/paint.js";
import { keepZoom, zoomedNode, zoomToNode, zoomToSite } from "./flame/zoom.js";

const trees = new TreeCache();

export const flameView: View = {
  id: "flame",
  title: "Flame graph",
  isAvailable: (model) => model.traces.some((trace) => trace.devices.length > 0),
  *prepare({ model, selection }) {
    const found = selectedDevice(model, selection());
    if (!found) return;
    const { trace, device } = found;
    yield* device.decodeBlocks();
    yield trace.stackSite;
    yield trace.stackNode;
    yield trees.get([trace], readSettings(selection(), "live", []));
    yield measureLabels();
  },
  mount(root, context) {
    const page = new FlamePage(root, context);
    return { update: () => page.update() };
  },
};

class FlamePage {
  readonly #strip = createMomentStrip((from_ns, to_ns) => this.#pickMoment(from_ns, to_ns));
  readonly #stripCard = h("div", "card",
    h("h2", {}, "Allocated memory over the run"), this.#strip.element);
  readonly #toolbar = createToolbar((options) => this.#setOptions(options));
  readonly #chart = new FlameChart({
    onZoom: (node) => this.#context.visit(zoomToNode(this.#context, node)),
    onFocus: () => this.#showNode(),
  });
  readonly #caption = h("p", "flame-caption");
  readonly #path = h("nav", { class: "flame-path", "aria-label": "Zoomed frames" });
  readonly #panel = h("div", "flame-panel");
  readonly #stacks = h("div", "flame-panel");
  readonly #table = h("div");
  #graph: Graph | null = null;
  /** What `#graph` and `#figures` were made for. */
  #key = "";
  #figures!: Figures;
  #trace!: TraceModel;
  #device!: DeviceModel;
  readonly #context: Context;

  constructor(
    root: HTMLElement,
    context: Context,
  ) {
    this.#context = context;
    root.append(
      this.#stripCard,
      h("div", "card",
        this.#toolbar.element, this.#caption, this.#path, this.#chart.element, this.#panel,
        this.#stacks),
      h("div", "card", this.#table),
    );
  }

  update(): void {
    const selection = this.#context.selection();
    const found = selectedDevice(this.#context.model, selection);
    if (!found) return;
    ({ trace: this.#trace, device: this.#device } = found);
    const modes = this.#modes();
    const fallback = defaultMode(selection, modes.includes("peak"));
    const settings = readSettings(selection, fallback, modes);
    const pair = settings.mode === "traces" ? this.#comparedTraces() : null;
    const { query: _, ...shown } = settings;
    const { trace, device, from_ns, to_ns } = selection;
    const key = JSON.stringify([shown, trace, device, from_ns, to_ns]);
    if (key !== this.#key) {
      this.#key = key;
      this.#figures = pair
        ? compareTraces(pair.traces, pair.devices, this.#trace, selection)
        : measure(settings.mode, this.#trace, this.#device, selection);
      const { frames, tree } = trees.get(pair?.traces ?? [this.#trace], settings);
      const sources: [number, number] = pair ? [1, 0] : [0, 0];
      this.#graph = createGraph(frames, tree, this.#figures, settings.unit, sources);
    }
    const figures = this.#figures;
    this.#showGraph(settings, figures, modes);
    this.#showStrip(figures);
    this.#showTable(figures, pair?.traces ?? null);
    this.#showNode();
  }

  #modes(): Mode[] {
    const modes: Mode[] = findKeyframe(this.#device, "peak") ? ["peak"] : [];
    modes.push("live", "kept", "churn", "difference");
    return this.#comparedTraces() ? [...modes, "traces"] : modes;
  }

  #comparedTraces(): {
    traces: [TraceModel, TraceModel];
    devices: [DeviceModel, DeviceModel];
  } | null {
    const { model } = this.#context;
    const { compare } = model.data;
    if (!compare) return null;
    const traces = [model.traces[compare.before], model.traces[compare.after]];
    const ordinal = this.#device.data.ordinal;
    const devices = traces.map((trace) =>
      trace.devices.find((device) => device.data.ordinal === ordinal));
    if (!devices[0] || !devices[1]) return null;
    return { traces: [traces[0], traces[1]], devices: [devices[0], devices[1]] };
  }

  #showGraph(settings: Settings, figures: Figures, modes: Mode[]): void {
    const graph = this.#graph!;
    const total = describeTotal(graph);
    const search = searchGraph(graph, settings.query);
    const site = this.#context.selection().site;
    const index = settings.mode === "traces" ? null : siteIndex(this.#trace, site);
    const lit = index === null
      ? null
      : lightStacks(graph, 0, figures.after.bytes, this.#trace.stackSite, index);
    const label = `Flame graph. ${figures.caption} ${total}.`;
    const zoom = zoomedNode(graph, this.#context.selection(), this.#trace.stackSite, index);
    this.#stacks.hidden = index === null;
    if (index !== null) showSiteStacks(this.#stacks, this.#context, this.#trace, index, figures);
    this.#chart.show(graph, zoom, label, total, (search ?? lit)?.isLit ?? null, search !== null);
    const result = search ? describeSearch(graph, search.nodes, search.sum) : "";
    this.#toolbar.update(settings, modes, result);
    fill(this.#caption, figures.caption, " ",
      figures.snapped && h("span", "snapped", figures.snapped), " ",
      graph.before && differenceLegend(),
      lit && !search && `Call stacks of the selected call site are lit: ${formatBytes(lit.sum)}.`,
      graph.weight[0] === 0 && h("strong", {}, "No blocks."),
      this.#chart.isCut && " Deeper frames are not drawn; zoom in to see them.");
  }

  #showStrip(figures: Figures): void {
    const { data } = this.#device;
    const selection = this.#context.selection();
    // The peaks of two traces are not on the axis of one of them.
    this.#stripCard.hidden = figures.times.length === 0;
    const times = [selection.from_ns, selection.to_ns].filter((time) => time !== null);
    this.#strip.show({
      end_ns: this.#trace.data.end_ns,
      bin_edges: this.#device.column(data.series.edges_ns),
      values: this.#device.column(data.series.live_max),
      key_edges: this.#device.edges(),
      behind: null,
      axis: createAxis(this.#trace, selection.axis),
      selected: times,
      shown: figures.times,
      sentence: "Allocated memory over the run",
    });
  }

  #showTable(figures: Figures, pair: [TraceModel, TraceModel] | null): void {
    const pick = (site: string): void => this.#context.visit(zoomToSite(this.#context, site));
    if (pair) fill(this.#table, traceTable(pair, figures, pick));
    else if (figures.before) fill(this.#table, differenceTable(this.#trace, figures, pick));
    else {
      const isOpen = this.#table.querySelector("details")?.open ?? false;
      fill(this.#table, tableBehind("Table", isOpen, () => siteTable(this.#trace, figures, pick)));
    }
  }

  /** The path to the zoomed node, and what is known of the focused one. */
  #showNode(): void {
    const graph = this.#graph;
    if (!graph) return;
    const { parent, frame } = graph.tree;
    const crumbs: Child[] = [];
    for (let node = this.#chart.zoom; ; node = parent[node]) {
      const name = node === 0 ? "all" : frameName(graph.frames, frame[node]);
      const target = node;
      const button = h("button", "link", name);
      on(button, "click", () => this.#chart.zoomTo(target));
      if (node === this.#chart.zoom) button.setAttribute("aria-current", "true");
      crumbs.unshift(button);
      if (node === 0) break;
    }
    this.#path.hidden = this.#chart.zoom === 0;
    const shown = crumbs.length > 7 ? [crumbs[0], "\u2026", ...crumbs.slice(-5)] : crumbs;
    fill(this.#path, ...shown);
    this.#showPanel(graph, this.#chart.focused);
  }

  #showPanel(graph: Graph, node: number): void {
    this.#panel.hidden = node === 0;
    if (node === 0) return;
    const facts_ = graph.frames[graph.tree.frame[node]];
    const site = facts_ && this.#trace.sites.find((each) =>
      each.file === facts_.file && each.line === facts_.line && each.function === facts_.function);
    const isSelected = site?.id === this.#context.selection().site;
    const button = site && h("button", { hidden: isSelected }, "Select this call site");
    button?.addEventListener("click", () => this.#context.visit({ site: site!.id }));
    fill(this.#panel,
      h("h3", {}, nodeName(graph, node)),
      h("p", "mono muted", frameFullPlace(graph.frames, graph.tree.frame[node])),
      site?.source && h("pre", "source", site.source),
      facts(nodeFacts(graph, node)),
      button);
  }

  #pickMoment(from_ns: number, to_ns: number | null): void {
    const mode = this.#context.selection().options["flame.mode"];
    // A mode that needs the other kind of selection gives way to the default one.
    const isWindowMode = mode === "kept" || mode === "churn" || mode === "difference";
    const fits = to_ns === null ? mode === "live" : isWindowMode;
    const options = fits ? {} : withOptions(this.#context, { "flame.mode": null });
    this.#context.visit({ from_ns, to_ns, ...options });
  }

  #setOptions(change: Record<string, string | null>): void {
    const kept = keepZoom(this.#context.selection(), change);
    const selected = withOptions(this.#context, kept);
    if ("flame.search" in change) this.#context.select(selected);
    else this.#context.visit(selected);
  }
}

function describeTotal(graph: Graph): string {
  const { after, before } = graph;
  if (before) {
    const change = after.bytes[0] - before.bytes[0];
    return `all: ${formatBytes(before.bytes[0])} to ${formatBytes(after.bytes[0])}, `
      + formatByteChange(change);
  }
  return `all: ${formatBytes(after.bytes[0])} in ${formatNumberOf(after.count[0], "block")}`;
}

function describeSearch(graph: Graph, nodes: number, sum: number): string {
  if (nodes === 0) return "No frame matches";
  const whole = graph.before ? graph.after.bytes[0] : graph.weight[0];
  const amount = graph.unit === "bytes" ? formatBytes(sum) : formatNumberOf(sum, "block");
  const share = whole > 0 ? ` (${formatShare(sum, whole)})` : "";
  return `${formatNumberOf(nodes, "frame")}, ${amount}${share}`;
}

function differenceLegend(): HTMLElement {
  return h("span", "legend",
    swatch(differenceColor(1)), "grew", swatch(differenceColor(-1)), "shrank",
    swatch(differenceColor(0)), "equal; widths are the larger of A and B. ");
}
