// Call trees, their totals and their layout.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundle } from "./bundle.mjs";

const { buildCallTree, NO_FRAME, sumTree } = await bundle("src/views/flame/call_tree.ts");
const { nodeOfSite } = await bundle("src/views/flame/graph.ts");
const { keepZoom, zoomedNode } = await bundle("src/views/flame/zoom.ts");
const { findRect, MERGED, neighbour, placeTree } = await bundle("src/views/flame/layout.ts");

const frame = (name, kind, is_user) =>
  ({ function: name, file: `${name}.py`, line: 1, kind, is_user });
const frames = [
  frame("main", "python", true),
  frame("forward", "python", true),
  frame("conv", "python", false),
  frame("at::conv", "native", false),
  frame("backward", "python", true),
  frame("cublas", "native", false),
];
// Nodes 1 to 6: main > forward > conv > at::conv; main > backward; and cublas alone.
const source = {
  nodeParent: Uint32Array.of(0, 0, 1, 2, 3, 1, 0),
  nodeFrame: Uint32Array.of(0, 0, 1, 2, 3, 4, 5),
  stackNode: Uint32Array.of(4, 5, 6, 3),
  frameOf: null,
};
const bytes = Float64Array.of(100, 30, 7, 13);
const count = Float64Array.of(1, 2, 3, 4);

function build(shape) {
  const all = { ownOnly: false, native: false, inverted: false, ...shape };
  const tree = buildCallTree(frames, [source], all);
  return { tree, totals: sumTree(tree, 0, bytes, count) };
}

/** "main/forward" and the bytes of each node. */
function paths({ tree, totals }) {
  const names = [""];
  const result = {};
  for (let node = 1; node < tree.frame.length; node++) {
    const name = tree.frame[node] === NO_FRAME ? "none" : frames[tree.frame[node]].function;
    names[node] = `${names[tree.parent[node]]}/${name}`;
    result[names[node]] = totals.bytes[node];
  }
  return result;
}

test("native frames stay only in stacks without Python frames", () => {
  assert.deepEqual(paths(build({})), {
    "/main": 143, "/main/forward": 113, "/main/forward/conv": 113, "/main/backward": 30,
    "/cublas": 7,
  });
  assert.equal(paths(build({ native: true }))["/main/forward/conv/at::conv"], 100);
});

test("a tree of many stacks has one node for each path", () => {
  const nodes = 20_000;
  let seed = 1;
  const random = (end) => (seed = (seed * 16807) % 2147483647) % end;
  const nodeParent = Uint32Array.from({ length: nodes }, (_, i) => (i === 0 ? 0 : random(i)));
  const nodeFrame = Uint32Array.from({ length: nodes }, () => random(50));
  const stackNode = Uint32Array.from({ length: nodes }, (_, i) => i);
  const many = Array.from({ length: 50 }, (_, i) => frame(`f${i}`, "python", true));
  const shape = { ownOnly: false, native: false, inverted: false };
  const tree = buildCallTree(many, [{ nodeParent, nodeFrame, stackNode, frameOf: null }], shape);
  const pathOf = (frames, parents, node) => {
    const path = [];
    for (let at = node; at !== 0; at = parents[at]) path.push(frames[at]);
    return path.join();
  };
  const paths = new Set();
  for (let node = 1; node < nodes; node++) {
    const path = pathOf(nodeFrame, nodeParent, node);
    assert.equal(pathOf(tree.frame, tree.parent, tree.stackEnd[0][node]), path);
    paths.add(path);
  }
  // The root, and the node of the one stack without frames.
  assert.equal(tree.frame.length, paths.size + 2);
});

test("own code only: stacks without own frames are one node, so the sum stays", () => {
  const own = build({ ownOnly: true });
  assert.deepEqual(paths(own), {
    "/main": 143, "/main/forward": 113, "/main/backward": 30, "/none": 7,
  });
  assert.equal(own.totals.bytes[0], 150);
  assert.equal(own.totals.count[0], 10);
});

test("inverted: innermost frames first", () => {
  assert.deepEqual(paths(build({ inverted: true, native: true })), {
    "/at::conv": 100, "/at::conv/conv": 100, "/at::conv/conv/forward": 100,
    "/at::conv/conv/forward/main": 100, "/backward": 30, "/backward/main": 30, "/cublas": 7,
    "/conv": 13, "/conv/forward": 13, "/conv/forward/main": 13,
  });
});

test("widths are proportional, and narrow siblings are merged", () => {
  const { tree, totals } = build({});
  const layout = placeTree(tree, totals.bytes, 0, 15);
  const rects = Array.from({ length: layout.count }, (_, i) => ({
    node: layout.node[i], x: layout.x[i], width: layout.width[i], row: layout.row[i],
  }));
  assert.deepEqual(rects[0], { node: 0, x: 0, width: 15, row: 0 });
  const merged = rects.find(({ node }) => node === MERGED);
  assert.equal(merged.row, 1);
  assert.ok(Math.abs(merged.x - 14.3) < 1e-9 && Math.abs(merged.width - 0.7) < 1e-9);
  assert.equal(layout.merged[rects.indexOf(merged)], 1);
  const forward = layout.node.indexOf(2);
  assert.equal(findRect(layout, layout.x[forward] + 1, 2), forward);
  assert.equal(neighbour(layout, forward, "ArrowRight"), layout.node.indexOf(4));
  assert.equal(neighbour(layout, forward, "ArrowUp"), layout.node.indexOf(1));
});

test("the ancestors of the zoomed node fill the width", () => {
  const { tree, totals } = build({});
  const layout = placeTree(tree, totals.bytes, 2, 100);
  assert.deepEqual([...layout.node.subarray(0, 4)], [0, 1, 2, 3]);
  assert.deepEqual([...layout.width.subarray(0, 4)], [100, 100, 100, 100]);
});

test("the zoom to a call site is the deepest node that all its stacks with bytes share", () => {
  const { tree, totals } = build({});
  const graph = { tree, weight: totals.bytes };
  const name = (site, sites) => {
    const node = nodeOfSite(graph, Uint32Array.from(sites), site);
    return node === 0 ? "all" : frames[tree.frame[node]].function;
  };
  // The stacks end in conv, backward, cublas and conv.
  assert.equal(name(1, [1, 0, 0, 1]), "conv");
  assert.equal(name(1, [1, 1, 0, 0]), "main");
  assert.equal(name(1, [0, 0, 1, 0]), "cublas");
  assert.equal(name(1, [1, 0, 1, 0]), "all");
  assert.equal(name(7, [1, 0, 1, 0]), "all");
  graph.weight = graph.weight.map((value, node) => (node === tree.stackEnd[0][2] ? 0 : value));
  assert.equal(name(1, [1, 0, 1, 0]), "conv");
});

test("the zoom of a link is a node with bytes, or all", () => {
  const { tree, totals } = build({});
  const graph = { tree, weight: totals.bytes };
  const zoom = (value) => zoomedNode(graph, { options: { "flame.zoom": value } }, source.stackNode, null);
  assert.equal(zoom("2"), 2);
  for (const value of [undefined, "", "site", "-1", "1.5", "99999", "<b>", "__proto__", "length"]) {
    assert.equal(zoom(value), 0, value);
  }
});

test("options that change the tree forget the zoomed node, and others keep it", () => {
  const at = (zoom, mode) => ({ options: { "flame.zoom": zoom, "flame.mode": mode } });
  const forgets = (selection, change) => keepZoom(selection, change)["flame.zoom"] === null;
  assert.ok(forgets(at("5", "peak"), { "flame.own": "1" }));
  assert.ok(forgets(at("5", "peak"), { "flame.mode": "traces" }));
  assert.ok(forgets(at("5", "traces"), { "flame.mode": "peak" }));
  assert.ok(!forgets(at("5", "peak"), { "flame.mode": "live" }));
  assert.ok(!forgets(at("5", "traces"), { "flame.search": "x" }));
  assert.ok(!forgets(at("site", "peak"), { "flame.inverted": "1" }));
});
