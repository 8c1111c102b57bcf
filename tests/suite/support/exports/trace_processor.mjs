// Loads a trace into Perfetto's trace processor (WebAssembly) and runs queries.
// Usage: node trace_processor.mjs FOLDER TRACE < queries.json
// FOLDER holds the trace processor that scripts/setup/trace-processor unpacks. The input is a list of
// SQL queries. The output is a list with the rows of each query, one object per row.

import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import vm from "node:vm";

const [folder, trace] = process.argv.slice(2);
const CHUNK_BYTES = 16 << 20;

// The glue is written for a browser's worker. It asks for the bytes of the module by `readBinary` and
// keeps its bridge to itself.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = function WorkerGlobalScope() {};
globalThis.location = { href: pathToFileURL(folder).href + "/" };
globalThis.wasmBytes = new Uint8Array(readFileSync(path.join(folder, "trace_processor.wasm")));

function replaceOnce(text, from, to) {
  if (text.split(from).length !== 2) throw new Error(`the glue has not exactly one ${from}`);
  return text.replace(from, () => to);
}

let glue = readFileSync(path.join(folder, "engine_bundle.node.js"), "utf8");
glue = replaceOnce(glue, "= hasMemory64Support();", "= false;");
glue = replaceOnce(glue, "locateFile: (s) => s,", "locateFile: (s) => s, wasmBinary: globalThis.wasmBytes,");
glue = replaceOnce(glue, "const wasmBridge = ", "const wasmBridge = globalThis.bridge = ");
// The decoder warns of fields that it does not know on stdout.
console.log = console.warn = (...words) => process.stderr.write(words.join(" ") + "\n");
vm.runInThisContext(glue, { filename: "engine_bundle.node.js" });

const { EngineBase } = await import(pathToFileURL(path.join(folder, "engine.mjs")).href);

class Engine extends EngineBase {
  mode = "WASM";
  id = "tests";

  constructor(port) {
    super();
    this.port = port;
    port.onmessage = (message) => this.onRpcResponseBytes(message.data);
  }

  rpcSendRequestBytes(bytes) {
    this.port.postMessage(bytes);
  }
}

while (!globalThis.bridge.reqBufferAddr) await new Promise((resolve) => setTimeout(resolve, 10));
const { port1, port2 } = new MessageChannel();
globalThis.bridge.initialize(port1);
const engine = new Engine(port2);
const bytes = new Uint8Array(readFileSync(trace));
for (let begin = 0; begin < bytes.length; begin += CHUNK_BYTES) {
  await engine.parse(bytes.subarray(begin, begin + CHUNK_BYTES));
}
await engine.notifyEof();

const tables = [];
for (const sql of JSON.parse(readFileSync(0, "utf8"))) {
  const result = await engine.query(sql);
  if (result.error()) throw new Error(`${sql}: ${result.error()}`);
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    // Integers are exact: those above 2^53 are written as text.
    const value = (cell) =>
      typeof cell !== "bigint" ? cell : Number.isSafeInteger(Number(cell)) ? Number(cell) : cell.toString();
    rows.push(Object.fromEntries(result.columns().map((column) => [column, value(row.get(column))])));
  }
  tables.push(rows);
}
process.stdout.write(JSON.stringify(tables), () => process.exit(0));
