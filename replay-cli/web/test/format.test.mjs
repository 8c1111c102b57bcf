// Numbers as the text report writes them, ticks of the axes, and the URL's fragment.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { bundle } from "./bundle.mjs";

const { formatBytes, formatCount, formatShare, formatTime } = await bundle("src/widgets/format.ts");
const { byteTicks, createAxis } = await bundle("src/widgets/axis.ts");
const { defaultSelection, formatPlace, parsePlace } = await bundle("src/shell/url.ts");
const { safeName, toCsv } = await bundle("src/widgets/download.ts");

test("bytes", () => {
  assert.equal(formatBytes(0), "0 B");
  assert.equal(formatBytes(1023), "1023 B");
  assert.equal(formatBytes(1024), "1.00 KiB");
  assert.equal(formatBytes(977137664), "931.87 MiB");
  assert.equal(formatBytes(1082130432), "1.01 GiB");
  assert.equal(formatBytes(-4194304), "-4.00 MiB");
  assert.equal(formatBytes(null), "unknown");
});

test("sizes and shares are those of the text report", async () => {
  const text = await readFile(new URL("numbers.txt", import.meta.url), "utf8");
  for (const line of text.trimEnd().split("\n")) {
    const [, part, whole, expected] = /^(\d+)(?:\/(\d+))? (.+)$/.exec(line);
    const found = whole ? formatShare(Number(part), Number(whole)) : formatBytes(Number(part));
    assert.equal(found, expected, line);
  }
});

test("counts, shares and times", () => {
  assert.equal(formatCount(18386), "18,386");
  assert.equal(formatCount(2 ** 53 - 1), "9,007,199,254,740,991");
  assert.equal(formatShare(1, 1000), "<1%");
  assert.equal(formatShare(0, 1000), "0%");
  assert.equal(formatShare(1, null), "unknown");
  const times = [0, 81, 1913631589, 999.6e6, 125e9, 11220e9].map(formatTime);
  assert.deepEqual(times, ["0 ns", "81 ns", "1.91 s", "1.00 s", "2 min 05 s", "3 h 07 min"]);
});

const trace = {
  index: 0,
  stepStarts: Float64Array.from([1e9, 2e9, 4e9]),
  data: { end_ns: 5e9 },
  stepAt: (time) => [1e9, 2e9, 4e9].filter((start) => start <= time).length,
};

for (const unit of ["time", "step"]) {
  test(`positions and times agree on the axis of ${unit}`, () => {
    const axis = createAxis(trace, unit);
    let previous = -Infinity;
    for (let time = 0; time <= 5e9; time += 1e8) {
      const position = axis.position(time);
      assert.ok(position > previous);
      assert.ok(Math.abs(axis.time(position) - time) < 1);
      previous = position;
    }
  });
}

test("steps are at whole positions", () => {
  const axis = createAxis(trace, "step");
  assert.deepEqual([0, 1e9, 2e9, 4e9, 5e9].map(axis.position), [0, 1, 2, 3, 4]);
  assert.deepEqual(axis.ticks(0, 4, 8).map((tick) => tick.label), [0, 1, 2, 3, 4].map((step) => `step ${step}`));
});

test("ticks of bytes are round, few and cover the range", () => {
  for (const most of [1, 500, 1100, 5e5, 3e6, 4.2e7, 1.1e9, 7e10, 2e13]) {
    for (const count of [2, 6]) {
      const ticks = byteTicks(most, count);
      assert.ok(ticks.length >= 2 && ticks.length <= 8, `${most}: ${ticks}`);
      assert.ok(ticks.at(-1) <= most);
    }
  }
});

test("the fragment keeps view and selection", () => {
  const first = { data: { steps: null }, devices: [{}, {}] };
  const model = { data: { first_trace: 0 }, traces: [first, { data: {}, devices: [{}] }] };
  const defaults = defaultSelection(model);
  const selection = {
    ...defaults,
    device: 1,
    from_ns: 5,
    to_ns: 2 ** 50,
    site: "a&b=c#d?e",
    options: { filter: "x y", zoom: "1-2" },
  };
  const text = formatPlace({ view: "sites", selection }, defaults);
  assert.deepEqual(parsePlace(text, model, ["overview", "sites"]), { view: "sites", selection });
  assert.equal(formatPlace({ view: "sites", selection: defaults }, defaults), "#sites");
  assert.equal(parsePlace("#no?trace=9&from=x", model, ["overview"]).view, "overview");
  assert.deepEqual(parsePlace("#no?trace=9&from=x", model, ["overview"]).selection, defaults);
});

test("the fragment names the trace unless it is the first one shown", () => {
  const traces = [0, 1].map((count) => ({ data: { steps: count ? {} : null }, devices: [{}] }));
  const model = { data: { first_trace: 1 }, traces };
  const defaults = defaultSelection(model);
  assert.deepEqual([defaults.trace, defaults.axis], [1, "step"]);
  assert.equal(formatPlace({ view: "sites", selection: defaults }, defaults), "#sites");
  const other = { ...defaults, trace: 0 };
  const link = formatPlace({ view: "sites", selection: other }, defaults);
  assert.equal(link, "#sites?trace=0");
  assert.equal(parsePlace(link, model, ["sites"]).selection.trace, 0);
  assert.equal(parsePlace("#sites", model, ["sites"]).selection.trace, 1);
});

test("names of files have no path and no special characters", () => {
  const names = ["/a/run.rank1.trace", "C:\\x\\run.trace", "..", "a/<script>.trace", "-rf x", "\u202e\n"];
  assert.deepEqual(names.map((name) => safeName(name, "-memory.png")), [
    "run.rank1-memory.png", "run-memory.png", "run-memory.png", "script_-memory.png", "rf_x-memory.png",
    "run-memory.png",
  ]);
  assert.ok(safeName("x".repeat(1000), ".png").length < 100);
});

test("CSV quotes, and disarms formulas", () => {
  assert.equal(toCsv(["a", "b"], [["=1+1", 2], ['x"y,', null]]), `a,b\r\n'=1+1,2\r\n"x""y,",\r\n`);
});
