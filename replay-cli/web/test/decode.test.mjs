// Columns: what container.mjs encodes, decode.ts must give back.

import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateRawSync } from "node:zlib";
import { bundle } from "./bundle.mjs";
import { ColumnWriter } from "./container.mjs";

const { Columns, decodeBase64, inflate } = await bundle("src/data/decode.ts");

function roundTrip(...columns) {
  const writer = new ColumnWriter();
  for (const values of columns) writer.add(values);
  const decoder = new Columns(writer.encode());
  return columns.map((_, index) => Array.from(decoder.decode(index)));
}

test("columns round-trip, also empty ones", () => {
  const columns = [[], [0], [1, 2, 3], [5, 3, 9, 0], []];
  assert.deepEqual(roundTrip(...columns), columns);
});

test("values beyond 2^32 and negative differences are exact", () => {
  const values = [0, 2 ** 32, 2 ** 32 + 1, 2 ** 53 - 1, 0, 2 ** 53 - 1, 2 ** 40 + 7, 63, 64, 65, 0];
  assert.deepEqual(roundTrip(values), [values]);
});

test("negative values are exact, while differences stay below 2^53", () => {
  const values = [-1, -64, -65, -(2 ** 33) - 5, -(2 ** 52), 2 ** 52 - 1, 7];
  assert.deepEqual(roundTrip(values), [values]);
});

test("random columns round-trip in any order of access", () => {
  const random = createRandom(1);
  const columns = Array.from({ length: 40 }, () =>
    Array.from({ length: random(50) }, () => random(2 ** (1 + random(52)))));
  const writer = new ColumnWriter();
  for (const values of columns) writer.add(values);
  const decoder = new Columns(writer.encode());
  for (let i = 0; i < 200; i++) {
    const column = random(columns.length);
    assert.deepEqual(Array.from(decoder.decode(column)), columns[column]);
  }
});

test("a column that does not exist, or is cut, is an error", () => {
  const writer = new ColumnWriter();
  writer.add([1, 2, 300]);
  const bytes = writer.encode();
  assert.throws(() => new Columns(bytes).decode(1), /end early/);
  assert.throws(() => new Columns(bytes).decode(-1), /no column/);
  assert.throws(() => new Columns(bytes.slice(0, -1)).decode(0), /end early/);
});

test("base64 of raw deflate is inflated", async () => {
  const text = "memory ".repeat(1000);
  const blob = deflateRawSync(Buffer.from(text)).toString("base64");
  assert.equal(new TextDecoder().decode(await inflate(decodeBase64(`\n${blob}\n`))), text);
});

test("damaged deflate is rejected", async () => {
  await assert.rejects(inflate(decodeBase64("////")));
});

/** Integers below a limit, the same in each run. */
function createRandom(seed) {
  let state = seed;
  return (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
}
