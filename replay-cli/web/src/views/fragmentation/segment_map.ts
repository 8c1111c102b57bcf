/**
 * The segment map of a keyframe on a canvas: live blocks in their segments, free space hatched.
 *
 * Left and Right go through blocks and free ranges in the order of the map, Up and Down through the
 * segments; Enter or a click picks a block.
 */

import { createSurface, fitSurface } from "../../widgets/canvas.js";
import { GREY, HUES } from "../../widgets/colors.js";
import { h, liveRegion, on } from "../../widgets/dom.js";
import { hatchPattern } from "../../draw/hatch.js";
import { fitLabel } from "../../draw/label_width.js";
import { hideTooltip, showTooltip, facts } from "../../draw/tooltip.js";
import { exactBytes, formatBytes, formatNumberOf } from "../../widgets/format.js";
import { themeColor } from "../../shell/theme.js";
import { HEADER, type PlacedPiece, placePieces, placeSegments, ROW, type SegmentLayout }
  from "./segment_layout.js";
import type { Piece, Segment } from "./segments.js";

export interface MapContent {
  segments: Segment[];
  colorBy: "site" | "pool";
  /** Site of a stack. */
  siteOf(stack: number): number;
  siteLabel(site: number): string;
  siteColor(site: number): string;
  /** Index of the site whose blocks stay lit; null for all. */
  selectedSite: number | null;
  sentence: string;
}

export interface SegmentMap {
  element: HTMLElement;
  show(content: MapContent): void;
}

export function createSegmentMap(
  pick: (segment: Segment, piece: Piece) => void,
): SegmentMap {
  const element = h("div", "segment-map");
  const surface = createSurface(element, "");
  const live = liveRegion();
  element.append(live);
  const { canvas } = surface;
  let content: MapContent | null = null;
  let layout: SegmentLayout | null = null;
  let placed: PlacedPiece[] = [];
  let cursor = -1;

  const pieceOf = ({ segment, piece }: PlacedPiece): [Segment, Piece] => {
    const found = content!.segments[segment];
    return [found, found.pieces[piece]];
  };

  function place(): void {
    const width = Math.max(1, Math.floor(element.clientWidth));
    layout = placeSegments(content!.segments, width);
    placed = layout.segments.flatMap((segment, i) =>
      segment ? placePieces(content!.segments, i, segment) : []);
    placed.sort((a, b) => {
      const [p, q] = [layout!.segments[a.segment]!, layout!.segments[b.segment]!];
      return p.y - q.y || a.x - b.x;
    });
  }

  function pieceAt(event: MouseEvent): number {
    const { left, top } = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    return placed.findIndex((each) => {
      const row = layout!.segments[each.segment]!;
      return row.y <= y && y < row.y + ROW && each.x <= x && x < each.x + Math.max(each.width, 1);
    });
  }

  on(canvas, "pointermove", (event) => {
    if (!content || !layout) return;
    const at = pieceAt(event);
    canvas.style.cursor = at >= 0 && pieceOf(placed[at])[1].kind === "block" ? "pointer" : "";
    if (at < 0) hideTooltip();
    else {
      const [segment, piece] = pieceOf(placed[at]);
      const title = h("p", "tooltip-title", pieceTitle(content, piece));
      showTooltip(event.clientX, event.clientY, title, facts(pieceFacts(segment, piece)));
    }
  });
  on(canvas, "pointerleave", hideTooltip);
  on(canvas, "click", (event) => {
    const at = content && layout ? pieceAt(event) : -1;
    if (at < 0) return;
    cursor = at;
    draw();
    pick(...pieceOf(placed[at]));
  });
  on(canvas, "keydown", (event) => {
    if (!content || placed.length === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = nextPiece(event.key);
    if (next !== null) {
      cursor = next;
      const [segment, piece] = pieceOf(placed[cursor]);
      const rows = pieceFacts(segment, piece).map(([name, value]) => `${name} ${value}`);
      live.textContent = `${pieceTitle(content, piece)}: ${rows.join("; ")}`;
      draw();
    } else if (event.key === "Enter" && cursor >= 0) {
      pick(...pieceOf(placed[cursor]));
    } else {
      return;
    }
    event.preventDefault();
  });

  function nextPiece(key: string): number | null {
    const last = placed.length - 1;
    switch (key) {
      case "ArrowRight": return Math.min(cursor + 1, last);
      case "ArrowLeft": return Math.max(cursor - 1, 0);
      case "Home": return 0;
      case "End": return last;
      case "ArrowDown": {
        const next = placed.findIndex((each, i) =>
          i > cursor && each.segment !== placed[cursor]?.segment);
        return next < 0 ? cursor : next;
      }
      case "ArrowUp": {
        const before = placed[Math.max(cursor, 0)].segment;
        const previous = placed.slice(0, Math.max(cursor, 0)).reverse()
          .find((each) => each.segment !== before)?.segment;
        return previous === undefined ? 0 : placed.findIndex((each) => each.segment === previous);
      }
      default: return null;
    }
  }

  function draw(): void {
    if (!content || !layout) return;
    fitSurface(surface, Math.max(layout.height, 1));
    const { context } = surface;
    drawHeaders(context, layout, surface.width);
    const hatch = hatchPattern(context);
    const pools = poolColors(content.segments);
    for (const each of placed) {
      const [segment, piece] = pieceOf(each);
      const { y } = layout.segments[each.segment]!;
      if (piece.kind === "unmapped") {
        context.fillStyle = themeColor("muted");
        for (const dot of [5, 11, 17]) context.fillRect(each.x + 3, y + dot, 1.5, 1.5);
        continue;
      }
      const site = piece.kind === "block" ? content.siteOf(piece.stack) : null;
      context.globalAlpha =
        site !== null && content.selectedSite !== null && site !== content.selectedSite ? 0.22 : 1;
      if (site === null) context.fillStyle = hatch;
      else if (content.colorBy === "site") context.fillStyle = content.siteColor(site);
      else context.fillStyle = pools.get(poolKey(segment)) ?? GREY;
      const gap = each.width > 4 ? 1 : 0;
      context.fillRect(each.x, y, Math.max(each.width - gap, 0.6), ROW);
      context.globalAlpha = 1;
    }
    layout.segments.forEach((segment, i) => {
      if (!segment) return;
      context.strokeStyle = themeColor("muted");
      context.lineWidth = 1;
      context.setLineDash(content!.segments[i].isExpandable ? [4, 3] : []);
      context.strokeRect(segment.x - 0.5, segment.y - 0.5, segment.width + 1, ROW + 1);
    });
    context.setLineDash([]);
    const marked = placed[cursor];
    if (!marked) return;
    const { y } = layout.segments[marked.segment]!;
    context.strokeStyle = themeColor("cursor");
    context.lineWidth = 2;
    context.strokeRect(marked.x - 1, y - 2, Math.max(marked.width, 2) + 1, ROW + 4);
  }

  return {
    element,
    show(next) {
      if (content?.segments !== next.segments) cursor = -1;
      content = next;
      canvas.setAttribute("aria-label", next.sentence);
      place();
      draw();
    },
  };
}

function drawHeaders(
  context: CanvasRenderingContext2D,
  layout: SegmentLayout,
  width: number,
): void {
  context.font = `12px ${themeColor("font")}`;
  context.textBaseline = "middle";
  for (const group of layout.groups) {
    const size = Number.isFinite(group.limit)
      ? `up to ${formatBytes(group.limit).replace(".00", "")}`
      : "above 2 GiB";
    const text = `${formatNumberOf(group.segments, "segment")} of ${size}, `
      + `${formatBytes(group.bytes)} in all; 1 pixel is ${formatBytes(group.bytesPerPixel)}`;
    context.fillStyle = themeColor("muted");
    context.fillText(fitLabel(context, text, width), 0, group.y + HEADER / 2 - 1);
  }
}

/** Stream and pool of a segment as one text. */
export function poolKey({ stream, pool }: Segment): string {
  const onStream = stream === 0 ? "default stream" : `stream 0x${stream.toString(16)}`;
  return pool === 0 ? onStream : `${onStream}, pool ${pool}`;
}

/** Colours by stream and pool: most reserved bytes first, all after the eighth grey. */
export function poolColors(segments: Segment[]): Map<string, string> {
  const sums = new Map<string, number>();
  for (const segment of segments) {
    sums.set(poolKey(segment), (sums.get(poolKey(segment)) ?? 0) + segment.bytes);
  }
  const ranked = [...sums].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  return new Map(ranked.map(([key], rank) => [key, HUES[rank] ?? GREY]));
}

function pieceTitle(content: MapContent, piece: Piece): string {
  if (piece.kind === "free") return "Free";
  if (piece.kind === "unmapped") return "Not mapped";
  return content.siteLabel(content.siteOf(piece.stack));
}

export function hex(addr: number): string {
  return `0x${addr.toString(16)}`;
}

export function pieceFacts(segment: Segment, piece: Piece): [string, string][] {
  const kind = segment.isExpandable
    ? `expandable, ${formatNumberOf(segment.ranges, "mapped range")}`
    : "cudaMalloc";
  return [
    [piece.kind === "block" ? "Block" : "Size", exactBytes(Math.round(piece.bytes))],
    ["Address", hex(piece.addr)],
    ["Segment", `${formatBytes(segment.bytes)} at ${hex(segment.addr)}, ${kind}`],
    ["For", poolKey(segment)],
    ["In it", `${formatBytes(segment.allocated)} in ${formatNumberOf(segment.blocks, "block")}, `
      + `largest free ${formatBytes(segment.largestFree)}`],
  ];
}
