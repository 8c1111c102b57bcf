// Writes a page for looking at views without the Rust writer:
//
//   node test/fixture.mjs OUT.html [TRACE]
//
// Addresses, sizes and times are the real events of `gpumemtrace dump`. The dump has no call sites,
// so blocks get those of the report by a rule of thumb; the report's peak is rewritten to match.
// Set GPUMEMTRACE to the program; the default is target/release/gpumemtrace.

import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { ColumnWriter, writePage } from "./container.mjs";
import { buildDevice } from "./fixture_device.mjs";

const WEB = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const ROOT = path.resolve(WEB, "../..");
const PROGRAM = [
  process.env.GPUMEMTRACE,
  path.join(ROOT, "target/release/gpumemtrace"),
  path.resolve(ROOT, "../main/target/release/gpumemtrace"),
].find((file) => file && existsSync(file));

const [out = "/tmp/page.html", trace = path.join(ROOT, "tests/golden/cuda-train.trace")] =
  process.argv.slice(2);

function run(...args) {
  const options = { encoding: "utf8", maxBuffer: 1 << 30, stdio: ["ignore", "pipe", "ignore"] };
  try {
    return execFileSync(PROGRAM, args, options);
  } catch (error) {
    if (error.stdout) return error.stdout;
    throw error;
  }
}

/** Events of the dump, with times since the start of recording. */
function readEvents() {
  const lines = run("dump", trace).split("\n");
  const started = Number(/started_ns=(\d+)/.exec(lines.find((l) => l.includes(" started_ns=")))[1]);
  const events = [];
  for (const line of lines) {
    if (!line.startsWith("seq=")) continue;
    const field = (name) => new RegExp(` ${name}=(\\S+)`).exec(line)?.[1];
    events.push({
      time: Number(field("time_ns")) - started,
      kind: field("kind"),
      device: field("dev") === "?" ? 0 : Number(field("dev")),
      addr: Number(field("addr")),
      size: Number(field("size")),
      stream: Number(field("stream") ?? 0),
      depth: Number(field("python") ?? 0),
    });
  }
  return events.sort((a, b) => a.time - b.time);
}

/** Frames, the tree of calls and one stack per site of the report. */
function buildStacks(report, columns) {
  const frames = [];
  const frameIndex = new Map();
  const parents = [];
  const nodeFrames = [];
  const children = new Map();
  const sites = [];
  const stacks = { node: [], site: [] };
  for (const entry of report.peak?.[0]?.sites ?? []) {
    const site = entry.site;
    let node = 0;
    for (const frame of [...(site.stack ?? [])].reverse()) {
      const file = frame.file ?? frame.module;
      const key = JSON.stringify([frame.kind, file, frame.line, frame.function]);
      if (!frameIndex.has(key)) {
        frameIndex.set(key, frames.length);
        frames.push({
          kind: frame.kind,
          function: frame.function,
          file,
          line: frame.line,
          is_user: frame.is_own === true,
        });
      }
      const child = `${node}/${frameIndex.get(key)}`;
      if (!children.has(child)) {
        parents.push(node);
        nodeFrames.push(frameIndex.get(key));
        children.set(child, parents.length);
      }
      node = children.get(child);
    }
    stacks.node.push(node);
    stacks.site.push(sites.length);
    sites.push({
      id: site.id,
      file: site.file,
      line: site.line,
      function: site.function,
      module: site.module,
      is_backward: site.is_backward === true,
      label: `${(site.file ?? "?").replace(/^.*\//, "")}:${site.line} in ${site.function}()`
        + (site.is_backward ? " (backward)" : ""),
      source: site.line === null ? null : `y = layer(x)  # source line ${site.line}`,
      category: entry.categories?.[0]?.category ?? null,
    });
  }
  return {
    frames,
    sites,
    nodes: { parent: columns.add(parents), frame: columns.add(nodeFrames) },
    stacks: { node: columns.add(stacks.node), site: columns.add(stacks.site) },
    averages: (report.peak?.[0]?.sites ?? []).map((entry) => entry.bytes / entry.blocks),
  };
}

function stepStarts(report) {
  const starts = [];
  for (const { step, time_ns } of report.timeline?.points ?? []) {
    while (step !== null && starts.length < step) starts.push(time_ns);
  }
  return starts;
}

const report = JSON.parse(run("replay", trace, "--json"));
const columns = new ColumnWriter();
const events = readEvents();
const { averages, ...stacks } = buildStacks(report, columns);
const starts = stepStarts(report);
const devices = report.devices.filter((device) => device.trace === 0).map((device) =>
  buildDevice({ device, report, events, averages, starts, columns }));
const data = {
  version: 1,
  generator: "gpumemtrace 0.1.0",
  reductions: ["Call sites of this fixture are made up; sizes, addresses and times are real."],
  has_source: true,
  traces: [{
    path: trace,
    rank: report.traces[0].rank,
    end_ns: report.traces[0].duration_ns,
    steps: starts.length ? { source: report.steps.source, count: starts.length, start_ns: columns.add(starts) } : null,
    marks: (report.marks ?? []).map((mark) => ({ ...mark, name: mark.name ?? "unknown" })),
    phases: [],
    ...stacks,
    devices,
  }],
  compare: null,
};
const page = await writePage({
  dist: path.join(WEB, "dist"),
  title: path.basename(trace),
  report: JSON.stringify(report),
  columns: columns.encode(),
  data,
  summary: run("replay", trace),
});
await writeFile(out, page);
console.log(`${out}: ${page.length} bytes`);
