/**
 * The flame graph's canvas: pointer, keyboard, zoom and tooltip.
 *
 * Arrow keys walk the tree, Enter zooms into the focused node, Escape zooms out. The live region
 * names the focused node.
 */

import { createSurface, fitSurface, type Surface } from "../../widgets/canvas.js";
import { h, liveRegion, on } from "../../widgets/dom.js";
import { hideTooltip, showTooltip } from "../../draw/tooltip.js";
import { describeNode, nodeSentence } from "./describe.js";
import { FrameColors } from "./frame_colors.js";
import type { Graph } from "./graph.js";
import { findRect, type Layout, MERGED, neighbour, placeTree, rectOfNode } from "./layout.js";
import { paintLayout, ROW_HEIGHT } from "./paint.js";

const ARROWS = ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"] as const;
const MIN_ROWS = 8;

export interface ChartOptions {
  /** The user wants to zoom to a node of the tree. The zoom changes with {@link FlameChart.show}. */
  onZoom(node: number): void;
  /** Another node is focused. */
  onFocus(): void;
}

export class FlameChart {
  readonly element = h("div", "flame-chart");
  zoom = 0;
  focused = 0;
  readonly #surface: Surface;
  readonly #live = liveRegion();
  #graph: Graph | null = null;
  #colors: FrameColors | null = null;
  #isLit: Uint8Array | null = null;
  #isSearch = false;
  #layout: Layout | null = null;
  #rootLabel = "all";
  #hovered = -1;
  #hasFocus = false;
  readonly #options: ChartOptions;

  constructor(options: ChartOptions) {
    this.#options = options;
    this.#surface = createSurface(this.element, "Flame graph");
    this.element.append(this.#live);
    const { canvas } = this.#surface;
    on(canvas, "keydown", (event) => this.#onKey(event));
    on(canvas, "pointermove", (event) => this.#onMove(event));
    on(canvas, "pointerleave", () => this.#leave());
    on(canvas, "click", (event) => this.#onClick(event));
    on(canvas, "focus", () => this.#setFocus(canvas.matches(":focus-visible")));
    on(canvas, "blur", () => this.#setFocus(false));
  }

  /** True if deeper rows were left out, see {@link placeTree}. */
  get isCut(): boolean {
    return this.#layout?.isCut ?? false;
  }

  /**
   * Shows another graph, or another zoom. Nodes that are not lit are faded, unless `isLit` is null.
   * Lit nodes of a search are underlined.
   */
  show(
    graph: Graph,
    zoom: number,
    label: string,
    rootLabel: string,
    isLit: Uint8Array | null,
    isSearch: boolean,
  ): void {
    const isSameTree = this.#graph?.tree === graph.tree;
    if (this.#graph?.frames !== graph.frames) this.#colors = new FrameColors(graph.frames);
    const isSameZoom = isSameTree && this.zoom === zoom;
    this.zoom = zoom;
    if (!isSameZoom || graph.weight[this.focused] === 0) this.focused = zoom;
    this.#graph = graph;
    this.#rootLabel = rootLabel;
    this.#isLit = isLit;
    this.#isSearch = isSearch;
    this.#surface.canvas.setAttribute("aria-label", label);
    this.place();
  }

  zoomTo(node: number): void {
    hideTooltip();
    this.focused = node;
    if (node === this.zoom) this.#draw();
    else this.#options.onZoom(node);
    this.#announce();
  }

  /** Zooms to the parent of the zoomed node; false if that is the root. */
  zoomOut(): boolean {
    if (!this.#graph || this.zoom === 0) return false;
    const child = this.zoom;
    this.zoomTo(this.#graph.tree.parent[child]);
    return true;
  }

  /** Places the nodes anew, for another width, and draws. */
  place(): void {
    if (!this.#graph) return;
    const { tree, weight } = this.#graph;
    const width = Math.max(1, Math.floor(this.element.clientWidth));
    this.#layout = placeTree(tree, weight, this.zoom, width);
    this.#hovered = -1;
    this.#draw();
  }

  #draw(): void {
    const graph = this.#graph;
    const layout = this.#layout;
    const colors = this.#colors;
    if (!graph || !layout || !colors) return;
    fitSurface(this.#surface, Math.max(layout.rows, MIN_ROWS) * ROW_HEIGHT);
    paintLayout(this.#surface, graph, layout, colors, {
      isLit: this.#isLit,
      isSearch: this.#isSearch,
      hovered: this.#hovered,
      focused: rectOfNode(layout, this.focused),
      hasFocus: this.#hasFocus,
      zoom: this.zoom,
      rootLabel: this.#rootLabel,
    });
  }

  #setFocus(hasFocus: boolean): void {
    this.#hasFocus = hasFocus;
    this.#draw();
    if (hasFocus) this.#announce();
  }

  #rectAt(event: MouseEvent): number {
    if (!this.#layout) return -1;
    const { left, top } = this.#surface.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - top) / ROW_HEIGHT);
    return findRect(this.#layout, event.clientX - left, row);
  }

  #onMove(event: PointerEvent): void {
    const at = this.#rectAt(event);
    if (at !== this.#hovered) {
      this.#hovered = at;
      this.#draw();
    }
    const graph = this.#graph;
    const layout = this.#layout;
    if (at < 0 || !graph || !layout) hideTooltip();
    else showTooltip(event.clientX, event.clientY, ...describeNode(graph, layout, at));
    this.#surface.canvas.style.cursor = at >= 0 && layout?.node[at] !== MERGED ? "pointer" : "";
  }

  #leave(): void {
    this.#hovered = -1;
    hideTooltip();
    this.#draw();
  }

  #onClick(event: MouseEvent): void {
    const at = this.#rectAt(event);
    const node = at < 0 || !this.#layout ? MERGED : this.#layout.node[at];
    if (node !== MERGED) this.zoomTo(node);
  }

  #onKey(event: KeyboardEvent): void {
    if (!this.#layout || event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = ARROWS.find((key) => key === event.key);
    if (arrow) {
      const at = Math.max(rectOfNode(this.#layout, this.focused), 0);
      const next = neighbour(this.#layout, at, arrow);
      if (next >= 0) {
        this.focused = this.#layout.node[next];
        this.#hasFocus = true;
        this.#draw();
        this.#announce();
        this.#scrollToFocused(next);
      }
    } else if (event.key === "Enter" || event.key === " ") {
      this.zoomTo(this.focused);
    } else if (event.key === "Home") {
      this.zoomTo(0);
    } else if (event.key !== "Escape" || !this.zoomOut()) {
      return;
    }
    event.preventDefault();
  }

  #scrollToFocused(rect: number): void {
    const box = this.#surface.canvas.getBoundingClientRect();
    const top = box.top + this.#layout!.row[rect] * ROW_HEIGHT;
    if (top < 90) window.scrollBy(0, top - 90);
    const bottom = top + ROW_HEIGHT - window.innerHeight + 20;
    if (bottom > 0) window.scrollBy(0, bottom);
  }

  #announce(): void {
    if (!this.#graph) return;
    if (this.#hasFocus) this.#live.textContent = nodeSentence(this.#graph, this.focused);
    this.#options.onFocus();
  }
}
