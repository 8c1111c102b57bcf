// The painted stack: bands end at the right pixel, and the topmost one is blended.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundle } from "./bundle.mjs";

const { paintStack } = await bundle("src/views/timeline/raster.ts");

const WIDTH = 3;
const HEIGHT = 100;

function paint(columns, selected = -1, live_max = 1e9) {
  const image = { width: WIDTH, height: HEIGHT, data: new Uint8ClampedArray(WIDTH * HEIGHT * 4) };
  const colors = ["#ff0000", "#00ff00", "#0000ff"];
  const bands = colors.map((color, band) => ({
    color,
    values: Float64Array.from(columns, (column) => column[band]),
  }));
  const pixels = {
    bin: Int32Array.from([0, 1, -1]),
    live_max: new Float64Array(3).fill(live_max),
  };
  paintStack(image, pixels, { bands, selected, surface: "#ffffff", top_bytes: HEIGHT });
  return (x, level) => {
    const at = ((HEIGHT - 1 - level) * WIDTH + x) * 4;
    return Array.from(image.data.slice(at, at + 4));
  };
}

test("bands lie on each other, without gaps and overlaps", () => {
  const at = paint([[10, 20, 30], [1, 0, 2]]);
  assert.deepEqual(at(0, 0), [255, 0, 0, 255]);
  assert.deepEqual(at(0, 8), [255, 0, 0, 255]);
  assert.deepEqual(at(0, 10), [0, 255, 0, 255]);
  assert.deepEqual(at(0, 28), [0, 255, 0, 255]);
  assert.deepEqual(at(0, 30), [0, 0, 255, 255]);
  assert.deepEqual(at(0, 58), [0, 0, 255, 255]);
  assert.deepEqual(at(0, 60), [0, 0, 0, 0]);
  assert.deepEqual(at(1, 0), [255, 0, 0, 255]);
  assert.deepEqual(at(1, 1), [0, 0, 255, 255]);
  assert.deepEqual(at(1, 3), [0, 0, 0, 0]);
});

test("columns outside of the recording stay empty", () => {
  const at = paint([[10, 20, 30], [1, 0, 2]]);
  assert.deepEqual(at(2, 0), [0, 0, 0, 0]);
});

test("a band that ends inside of a pixel covers its share", () => {
  const at = paint([[2.5, 0, 0], [0.25, 0.25, 0]]);
  assert.deepEqual(at(0, 2), [255, 0, 0, 128]);
  assert.deepEqual(at(1, 0), [127, 127, 0, 128]);
});

test("the selected band is at the bottom in its colour", () => {
  const at = paint([[10, 20, 30], [0, 0, 0]], 2);
  assert.deepEqual(at(0, 0), [0, 0, 255, 255]);
  assert.ok(at(0, 31)[1] > 100, "the others are pale");
});

test("a stack above the top is cut", () => {
  const at = paint([[500, 0, 0], [0, 0, 0]]);
  assert.deepEqual(at(0, HEIGHT - 1), [255, 0, 0, 255]);
});

test("what is above the memory of the column is pale", () => {
  const at = paint([[20, 0, 0], [0, 0, 0]], -1, 10);
  assert.deepEqual(at(0, 9), [255, 0, 0, 255]);
  assert.ok(at(0, 10)[1] > 200);
});
