/**
 * The segments of a keyframe as rows: live blocks and free ranges by address.
 *
 * The mapped ranges of one expandable segment are one row. Its unmapped ranges are kept as breaks,
 * so the page never shows address space as memory.
 */

import type { DeviceModel } from "../../data/model.js";
import type { Keyframe } from "../../data/page_data.js";

export interface Piece {
  kind: "block" | "free" | "unmapped";
  addr: number;
  bytes: number;
  /** Stack of a block; -1 for others. */
  stack: number;
}

export interface Segment {
  addr: number;
  /** Reserved bytes, without unmapped ranges. */
  bytes: number;
  stream: number;
  pool: number;
  isExpandable: boolean;
  /** Mapped ranges; 1 unless the segment is expandable. */
  ranges: number;
  allocated: number;
  blocks: number;
  largestFree: number;
  pieces: Piece[];
}

/** Null if the segments are unknown. Sorted by stream, pool and address. */
export function readSegments(device: DeviceModel, keyframe: Keyframe): Segment[] | null {
  if (!keyframe.segments) return null;
  const column = (number: number): Float64Array => device.column(number);
  const { segments, blocks } = keyframe;
  const [addr, bytes] = [column(segments.addr), column(segments.bytes)];
  const [stream, pool] = [column(segments.stream), column(segments.pool)];
  const isExpandable = column(segments.is_expandable);
  const live = {
    addr: column(blocks.addr), bytes: column(blocks.bytes), stack: column(blocks.stack),
  };
  // Each expandable segment reserves more addresses than the device has memory.
  const farBytes = (device.data.total_bytes ?? 2 ** 31) / 2;
  const result: Segment[] = [];
  let block = 0;
  let open: Segment | null = null;
  for (let i = 0; i < addr.length; i++) {
    const end: number = open ? lastEnd(open) : 0;
    const joins: boolean = open !== null && isExpandable[i] === 1 && open.isExpandable
      && open.stream === stream[i] && open.pool === pool[i] && addr[i] - end < farBytes;
    if (!joins || !open) {
      open = {
        addr: addr[i], bytes: 0, stream: stream[i], pool: pool[i],
        isExpandable: isExpandable[i] === 1, ranges: 0, allocated: 0, blocks: 0, largestFree: 0,
        pieces: [],
      };
      result.push(open);
    } else if (addr[i] > end) {
      open.pieces.push({ kind: "unmapped", addr: end, bytes: addr[i] - end, stack: -1 });
    }
    if (!joins || addr[i] > end) open.ranges++;
    open.bytes += bytes[i];
    block = addRange(open, addr[i], addr[i] + bytes[i], live, block);
  }
  for (const segment of result) summarize(segment);
  return result.sort((a, b) => a.stream - b.stream || a.pool - b.pool || a.addr - b.addr);
}

function lastEnd(segment: Segment): number {
  const last = segment.pieces[segment.pieces.length - 1];
  return last ? last.addr + last.bytes : segment.addr;
}

/** Adds the blocks and free ranges of a mapped range; returns the first block behind it. */
function addRange(
  segment: Segment,
  from: number,
  to: number,
  live: { addr: Float64Array; bytes: Float64Array; stack: Float64Array },
  block: number,
): number {
  // A block may begin in the range before: adjacent ranges of an expandable segment are one.
  let at = Math.max(from, Math.min(lastEnd(segment), to));
  while (block < live.addr.length && live.addr[block] < to) {
    const [addr, bytes, stack] = [live.addr[block], live.bytes[block], live.stack[block]];
    block++;
    if (addr < at) continue;
    addFree(segment, at, addr);
    segment.pieces.push({ kind: "block", addr, bytes, stack });
    at = addr + bytes;
  }
  addFree(segment, at, to);
  return block;
}

/** Free space on both sides of the border of two mapped ranges is one range. */
function addFree(segment: Segment, from: number, to: number): void {
  if (to <= from) return;
  const last = segment.pieces[segment.pieces.length - 1];
  if (last?.kind === "free" && last.addr + last.bytes === from) last.bytes += to - from;
  else segment.pieces.push({ kind: "free", addr: from, bytes: to - from, stack: -1 });
}

function summarize(segment: Segment): void {
  for (const { kind, bytes } of segment.pieces) {
    if (kind === "block") {
      segment.allocated += bytes;
      segment.blocks++;
    } else if (kind === "free") {
      segment.largestFree = Math.max(segment.largestFree, bytes);
    }
  }
}
