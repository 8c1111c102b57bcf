/**
 * Places segments in groups of similar size, each with a scale of its own, so that a segment of
 * 2 MiB is as readable as one of 2 GiB. Within a group, widths are proportional to bytes.
 */

import type { Segment } from "./segments.js";

const MIB = 2 ** 20;
/** Upper ends of the groups; those of PyTorch's small and large buffers come first. */
const GROUPS = [2 * MIB, 20 * MIB, 200 * MIB, 2048 * MIB, Infinity];

export const ROW = 22;
export const HEADER = 26;
const GAP = 5;
/** Room for the border. */
const EDGE = 1;
/** Width of an unmapped range; it is not to scale. */
export const BREAK = 7;
/** Rows that a group fills before its scale shrinks; more if segments would get too narrow. */
const ROWS = 9;
const MOST_ROWS = 60;
/** Mean width in pixels that segments should have. */
const MEAN_WIDTH = 44;
/** Up to this many segments share one row; of more, the largest takes this part of a row. */
const MIN_PER_ROW = 5;

export interface PlacedPiece {
  segment: number;
  piece: number;
  x: number;
  width: number;
}

export interface PlacedSegment {
  x: number;
  y: number;
  width: number;
}

export interface SegmentLayout {
  groups: { y: number; bytesPerPixel: number; segments: number; bytes: number; limit: number }[];
  segments: (PlacedSegment | null)[];
  height: number;
}

export function placeSegments(segments: Segment[], width: number): SegmentLayout {
  const layout: SegmentLayout = { groups: [], segments: segments.map(() => null), height: 0 };
  let y = 0;
  for (let group = GROUPS.length - 1; group >= 0; group--) {
    const limit = GROUPS[group];
    const floor = GROUPS[group - 1] ?? 0;
    const members = segments.flatMap((segment, i) =>
      segment.bytes > floor && segment.bytes <= limit ? [i] : []);
    if (members.length === 0) continue;
    const bytesPerPixel = scaleOf(members.map((i) => segments[i].bytes), width);
    const bytes = members.reduce((sum, i) => sum + segments[i].bytes, 0);
    layout.groups.push({ y, bytesPerPixel, segments: members.length, bytes, limit });
    y = placeGroup(layout, segments, members, bytesPerPixel, y + HEADER, width) + 10;
  }
  layout.height = y;
  return layout;
}

/** Bytes per pixel: few segments share one row, many fill some rows. */
function scaleOf(sizes: number[], width: number): number {
  const total = sizes.reduce((sum, bytes) => sum + bytes, 0);
  if (sizes.length <= MIN_PER_ROW) return total / (width - 2 * EDGE - GAP * sizes.length - 40);
  const largest = Math.max(...sizes);
  const rows = Math.max(ROWS, Math.min((sizes.length * MEAN_WIDTH) / width, MOST_ROWS));
  return Math.max(largest / (width / MIN_PER_ROW - 30), total / (rows * width * 0.85));
}

function placeGroup(
  layout: SegmentLayout,
  segments: Segment[],
  members: number[],
  bytesPerPixel: number,
  top: number,
  width: number,
): number {
  let x = EDGE;
  let y = top;
  for (const i of members) {
    const breaks = segments[i].pieces.filter((piece) => piece.kind === "unmapped").length;
    const wide = Math.max(Math.min(segments[i].bytes / bytesPerPixel + breaks * BREAK, width), 2);
    if (x > EDGE && x + wide > width) {
      x = EDGE;
      y += ROW + GAP;
    }
    layout.segments[i] = { x, y, width: wide };
    x += wide + GAP;
  }
  return y + ROW;
}

/** Pixels of the pieces of a segment. */
export function placePieces(
  segments: Segment[],
  index: number,
  { x, width }: PlacedSegment,
): PlacedPiece[] {
  const { pieces, bytes } = segments[index];
  const breaks = pieces.filter((piece) => piece.kind === "unmapped").length;
  const scale = (width - breaks * BREAK) / bytes;
  let at = x;
  return pieces.map(({ kind, bytes: size }, piece) => {
    const placed = {
      segment: index, piece, x: at, width: kind === "unmapped" ? BREAK : size * scale,
    };
    at += placed.width;
    return placed;
  });
}
