// Queries over the table of blocks against a recount of single blocks.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundle } from "./bundle.mjs";
import { ColumnWriter } from "./container.mjs";

const { loadModel } = await bundle("src/data/load_model.ts");
const { Columns } = await bundle("src/data/decode.ts");

const STACKS = 7;

function createRandom(seed) {
  let state = seed;
  return (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
}

/** Blocks with times; `death` is Infinity for some. */
function randomBlocks(random, count, end) {
  return Array.from({ length: count }, () => {
    const birth = random(end);
    const death = random(5) === 0 ? Infinity : birth + random(end);
    return {
      birth,
      death: death >= end ? Infinity : death,
      stack: random(STACKS),
      bytes: random(2 ** 36),
    };
  });
}

function buildModel(blocks, edges) {
  const columns = new ColumnWriter();
  const bins = edges.length - 1;
  const binOf = (time) => (time === Infinity ? bins : edges.findLastIndex((edge) => edge < time));
  const rows = new Map();
  for (const { birth, death, stack, bytes } of blocks) {
    const [born, died] = [binOf(birth), binOf(death)];
    const key = [born, died, stack].join("/");
    const row = rows.get(key) ?? { birth: born, death: died, stack, bytes: 0, count: 0 };
    row.bytes += bytes;
    row.count++;
    rows.set(key, row);
  }
  const sorted = [...rows.values()].sort((a, b) => a.birth - b.birth);
  const column = (name) => columns.add(sorted.map((row) => row[name]));
  const table = Object.fromEntries(
    ["birth", "death", "stack", "bytes", "count"].map((name) => [name, column(name)]),
  );
  const trace = {
    path: "test.trace",
    steps: { source: "marks", count: 3, start_ns: columns.add([100, 200, 2 ** 33]) },
    frames: [],
    sites: [],
    nodes: { parent: columns.add([0, 1]), frame: columns.add([4, 5]) },
    stacks: {
      node: columns.add(Array.from({ length: STACKS }, () => 1)),
      site: columns.add(Array.from({ length: STACKS }, (_, stack) => stack % 3)),
    },
    devices: [{ ordinal: 0, blocks: { edges_ns: columns.add(edges), bins, ...table } }],
  };
  const data = { version: 1, traces: [trace] };
  return loadModel(data, new Columns(columns.encode()), {});
}

function recount(blocks, isCounted) {
  const bytes = new Float64Array(STACKS);
  const count = new Float64Array(STACKS);
  for (const block of blocks.filter(isCounted)) {
    bytes[block.stack] += block.bytes;
    count[block.stack]++;
  }
  return { bytes, count };
}

for (const seed of [1, 2, 3]) {
  test(`queries equal a recount at every edge (seed ${seed})`, () => {
    const random = createRandom(seed);
    const times = [0];
    for (let bin = 20 + random(20); bin > 0; bin--) times.push(times.at(-1) + 1 + random(6000));
    const end = times.at(-1);
    const blocks = randomBlocks(random, 3000, end).filter(({ birth }) => birth > 0 && birth <= end);
    const device = buildModel(blocks, times).traces[0].devices[0];
    const edges = device.edges();
    assert.deepEqual(Array.from(edges), times);
    edges.forEach((time, edge) => {
      assert.equal(device.nearestEdge(time), edge);
      const isLive = ({ birth, death }) => birth <= time && death > time;
      assert.deepEqual(device.liveAtEdge(edge), recount(blocks, isLive));
    });
    for (let i = 0; i < 60; i++) {
      const [from, to] = [random(edges.length), random(edges.length)].sort((a, b) => a - b);
      const isBornIn = ({ birth }) => birth > edges[from] && birth <= edges[to];
      const isKept = (block) => isBornIn(block) && block.death > edges[to];
      const isChurn = (block) => isBornIn(block) && block.death <= edges[to];
      assert.deepEqual(device.keptBetween(from, to), recount(blocks, isKept));
      assert.deepEqual(device.churnBetween(from, to), recount(blocks, isChurn));
    }
  });
}

test("the nearest edge is clamped to the table", () => {
  const device = buildModel([], [499, 599, 619, 1499]).traces[0].devices[0];
  assert.equal(device.nearestEdge(0), 0);
  assert.equal(device.nearestEdge(548), 0);
  assert.equal(device.nearestEdge(550), 1);
  assert.equal(device.nearestEdge(610), 2);
  assert.equal(device.nearestEdge(1000), 2);
  assert.equal(device.nearestEdge(1e12), 3);
});

test("steps and nodes", () => {
  const trace = buildModel([], [0, 10, 20]).traces[0];
  const times = [0, 99, 100, 199.5, 200, 2 ** 34];
  assert.deepEqual(times.map((time) => trace.stepAt(time)), [0, 0, 1, 1, 2, 3]);
  assert.deepEqual(Array.from(trace.nodeParent), [0, 0, 1]);
  assert.deepEqual(Array.from(trace.nodeFrame), [0, 4, 5]);
});
