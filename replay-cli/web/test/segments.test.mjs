// Segments of keyframes: blocks, free ranges, and expandable segments with unmapped pages.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundle } from "./bundle.mjs";

const { readSegments } = await bundle("src/views/fragmentation/segments.ts");
const { placePieces, placeSegments } = await bundle("src/views/fragmentation/segment_layout.ts");

const MIB = 2 ** 20;

function read(segments, blocks, total_bytes = 80 * 1024 * MIB) {
  const columns = [];
  const add = (rows, key) => columns.push(Float64Array.from(rows, (row) => row[key] ?? 0)) - 1;
  const keyframe = {
    segments: Object.fromEntries(["addr", "bytes", "stream", "pool", "is_expandable"].map((key) =>
      [key, add(segments, key)])),
    blocks: Object.fromEntries(["addr", "bytes", "stack"].map((key) => [key, add(blocks, key)])),
  };
  const device = { data: { total_bytes }, column: (number) => columns[number] };
  return readSegments(device, keyframe);
}

const shape = ({ pieces }) => pieces.map(({ kind, bytes }) => `${kind} ${bytes / MIB}`);

test("blocks and free ranges fill a segment", () => {
  const [first, second] = read(
    [{ addr: 0, bytes: 20 * MIB }, { addr: 100 * MIB, bytes: 2 * MIB }],
    [{ addr: 2 * MIB, bytes: 4 * MIB, stack: 1 }, { addr: 6 * MIB, bytes: MIB, stack: 2 }],
  );
  assert.deepEqual(shape(first), ["free 2", "block 4", "block 1", "free 13"]);
  assert.equal(first.allocated, 5 * MIB);
  assert.equal(first.largestFree, 13 * MIB);
  assert.deepEqual(shape(second), ["free 2"]);
});

test("an expandable segment keeps its unmapped pages apart from free memory", () => {
  const range = (addr, bytes) =>
    ({ addr: addr * MIB, bytes: bytes * MIB, is_expandable: 1, stream: 7 });
  const segments = read(
    [range(0, 20), range(20, 20), range(60, 20)],
    [{ addr: 10 * MIB, bytes: 20 * MIB, stack: 0 }, { addr: 60 * MIB, bytes: 20 * MIB, stack: 0 }],
  );
  assert.equal(segments.length, 1);
  const pieces = ["free 10", "block 20", "free 10", "unmapped 20", "block 20"];
  assert.deepEqual(shape(segments[0]), pieces);
  assert.equal(segments[0].bytes, 60 * MIB);
  assert.equal(segments[0].ranges, 2);
  assert.equal(segments[0].allocated, 40 * MIB);
});

test("ranges of different streams, or far apart, are different segments", () => {
  const segments = read(
    [
      { addr: 0, bytes: MIB, is_expandable: 1, stream: 1 },
      { addr: MIB, bytes: MIB, is_expandable: 1, stream: 2 },
      { addr: 8 * 1024 * MIB, bytes: MIB, is_expandable: 1, stream: 2 },
    ],
    [],
    8 * 1024 * MIB,
  );
  assert.equal(segments.length, 3);
});

test("all segments are placed inside the width, each group with its scale", () => {
  const sizes = [2, 2, 20, 150, 3000, ...Array(500).fill(20)];
  let addr = 0;
  const segments = read(sizes.map((size) => {
    const segment = { addr, bytes: size * MIB };
    addr += 2 * size * MIB;
    return segment;
  }), []);
  const layout = placeSegments(segments, 1000);
  assert.equal(layout.groups.length, 4);
  layout.segments.forEach((placed, i) => {
    assert.ok(placed.x >= 0 && placed.x + placed.width <= 1000, JSON.stringify(placed));
    const pieces = placePieces(segments, i, placed);
    const last = pieces[pieces.length - 1];
    assert.ok(Math.abs(last.x + last.width - placed.x - placed.width) < 1e-6);
  });
});
