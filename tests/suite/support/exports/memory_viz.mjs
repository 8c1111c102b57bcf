// Runs the functions of PyTorch's page memory_viz on a snapshot, without the page.
//
// usage: node memory_viz.mjs FOLDER SNAPSHOT
//
// FOLDER holds MemoryViz.js and process_alloc_data.js of PyTorch. Prints the value that the viewer
// decodes, and per device the greatest height of its timelines: with every allocation drawn, with
// ten drawn and the rest summed up, and with the envelopes of private pools.

import { readFileSync } from "node:fs";
import path from "node:path";

const [folder, file] = process.argv.slice(2);
const source = (name) => readFileSync(path.join(folder, name), "utf8");
const data = source("process_alloc_data.js").replace(/^export \{[^}]*\};?/m, "");
const page = source("MemoryViz.js");
const functions = ["version_space", "annotate_snapshot", "unpickle", "unpickleData"].map(
  (name) => page.match(new RegExp(`^function ${name}\\([\\s\\S]*?^}`, "m"))?.[0] ?? "",
);
const viewer = new Function(
  `${data}\n${functions.join("\n")}\nreturn { annotate_snapshot, process_alloc_data, unpickle };`,
)();
const print = console.log;
console.log = () => {}; // The viewer logs the whole snapshot.

const bytes = readFileSync(file);
const decode = () => viewer.unpickle(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
const snapshot = decode();
viewer.annotate_snapshot(snapshot);
const height = (device, drawn, withPools) => {
  const plot = viewer.process_alloc_data(snapshot, device, false, drawn, withPools);
  return plot.max_at_time.reduce((most, bytes) => Math.max(most, bytes), 0);
};
const heights = snapshot.device_traces.map((_, device) => ({
  all: height(device, Infinity, false),
  few: height(device, 10, false),
  pools: height(device, Infinity, true),
}));
print(JSON.stringify({ value: decode(), heights }));
