// The map of ranks: order, merged rows, and the numbers of a cell.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundle } from "./bundle.mjs";

const { cellFacts, mergeRows, ORDERS } = await bundle("src/runs/heat_rows.ts");

function rankOf(rank, live_bytes, more = {}) {
  return {
    name: `rank ${rank}`, rank, path: "run.trace", host: "node0", end: "exit", steps: 7, duration_ns: 4e9,
    total_bytes: 80 * 2 ** 30, peak_live_bytes: Math.max(...live_bytes), peak_reserved_bytes: null,
    finding: null, live_bytes, ...more,
  };
}

test("each rank has a row while there is space", () => {
  const ranks = [rankOf(0, [1, 2]), rankOf(1, [3, null])];
  assert.deepEqual(mergeRows(ranks).map((row) => row.live_bytes), [[1, 2], [3, null]]);
});

test("ranks that share a row show the highest of them; unknown is not 0", () => {
  const ranks = [rankOf(0, [1, null]), rankOf(1, [3, null]), rankOf(2, [2, 9])];
  const rows = mergeRows(ranks, 2);
  assert.deepEqual(rows.map((row) => row.live_bytes), [[3, null], [2, 9]]);
  assert.deepEqual(rows.map((row) => row.ranks.length), [2, 1]);
});

test("ranks are ordered by number, by peak, or by host; unknown ones last", () => {
  const ranks = [
    rankOf(10, [1], { host: "b" }), rankOf(2, [5], { host: "b" }), rankOf(null, [3], { host: "a" }),
  ];
  const order = (key) => [...ranks].sort(ORDERS[key].compare).map((rank) => rank.rank);
  assert.deepEqual(order("rank"), [2, 10, null]);
  assert.deepEqual(order("peak"), [2, null, 10]);
  assert.deepEqual(order("host"), [null, 2, 10]);
});

test("a cell has the time of its part and the numbers of its rank", () => {
  const [row] = mergeRows([rankOf(3, [2 ** 20, null])]);
  const facts = Object.fromEntries(cellFacts(row, 1));
  assert.equal(facts.allocated, "unknown");
  assert.equal(facts.time, "2.00 s to 4.00 s");
  assert.equal(facts.steps, "7");
  const unknown = mergeRows([rankOf(3, [1], { duration_ns: null })])[0];
  assert.equal(Object.fromEntries(cellFacts(unknown, 0)).time, "unknown to unknown");
});
