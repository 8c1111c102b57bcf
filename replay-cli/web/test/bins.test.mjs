// Bins by their edges against a search through all of them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundle } from "./bundle.mjs";

const { binAt, binsBetween, byteTime } = await bundle("src/data/bins.ts");

// The bins 1 and 2 have no width.
const EDGES = Float64Array.of(10, 20, 20, 20, 35, 90);
const BINS = EDGES.length - 1;

test("a moment lies in the last bin that has begun", () => {
  for (let time = 0; time < 100; time += 0.5) {
    let expected = 0;
    for (let bin = 0; bin < BINS; bin++) if (EDGES[bin] <= time) expected = bin;
    assert.equal(binAt(EDGES, time), expected, `${time}`);
  }
});

test("a span of time has the bins that it touches", () => {
  for (let begin = 0; begin < 100; begin += 2.5) {
    for (let end = begin + 2.5; end < 110; end += 2.5) {
      const touched = [...Array(BINS).keys()].filter((bin) => {
        const to = bin === BINS - 1 ? Infinity : EDGES[bin + 1];
        const from = bin === 0 ? -Infinity : EDGES[bin];
        return from < end && to > begin && from < to;
      });
      const [first, last] = binsBetween(EDGES, begin, end);
      const shown = [...Array(BINS).keys()].filter((bin) =>
        first <= bin && bin <= last && (EDGES[bin] < EDGES[bin + 1]));
      assert.deepEqual(shown, touched, `${begin} to ${end}`);
    }
  }
  assert.deepEqual(binsBetween(new Float64Array(0), 0, 1), [0, 0]);
});

test("bytes count for as long as they are there", () => {
  assert.equal(byteTime(EDGES, Float64Array.of(1, 50, 50, 2, 3)), 10 + 30 + 165);
});
