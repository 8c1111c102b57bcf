/** The recording: versions, settings, losses, notes; what a maintainer asks for in a bug report. */

import { fill, h } from "../widgets/dom.js";
import { formatCount, formatTime } from "../widgets/format.js";
import { describeEnd } from "../shell/header.js";
import type { Report } from "../data/model.js";
import type { Context, MountedView, View } from "../view.js";

export const runView: View = {
  id: "run",
  title: "Run",
  isAvailable: () => true,
  mount: (root, context) => new RunView(root, context),
};

type Fact = [name: string, value: string];

class RunView implements MountedView {
  private readonly body = h("div");
  private trace = -1;

  constructor(root: HTMLElement, private readonly context: Context) {
    root.append(this.body);
  }

  update(): void {
    const { trace } = this.context.selection();
    if (trace === this.trace) return;
    this.trace = trace;
    const { data, report } = this.context.model;
    const info = report.traces?.[trace];
    const text = document.getElementById("summary")?.textContent?.trim() ?? "";
    fill(
      this.body,
      h(
        "div",
        { class: "run-cards" },
        info ? card("Program", facts(programFacts(info))) : null,
        info ? card("Losses", lossFacts(info)) : null,
        info ? card("Versions and settings", facts(versionFacts(info, data.generator))) : null,
        card("Steps", facts(stepFacts(report, trace))),
        card("This page", pageFacts(data.reductions, data.has_source)),
        ...(report.devices ?? []).filter((each: Report) => each.trace === trace).map(deviceCard),
        info ? card("Recorded events", facts(eventFacts(info))) : null,
      ),
      text ? textCard(text) : null,
    );
  }
}

function card(title: string, ...content: (Node | null)[]): HTMLElement {
  return h("section", { class: "card" }, h("h2", {}, title), ...content);
}

function facts(list: Fact[]): HTMLElement {
  const terms = list.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
  return h("dl", { class: "run-facts" }, ...terms);
}

function known(value: unknown): string {
  if (value === null || value === undefined) return "unknown";
  return Array.isArray(value) ? value.join(" ") : String(value);
}

function programFacts(info: Report): Fact[] {
  const started = info.started_unix_ns === null
    ? "unknown"
    : new Date(info.started_unix_ns / 1e6).toISOString().replace("T", " ").replace(/\..*/, " UTC");
  const list: Fact[] = [
    ["Trace", known(info.path)],
    ["Command", known(info.command)],
    ["Host", known(info.host)],
    ["Process", known(info.pid)],
    ["Started", started],
    ["Duration", formatTime(info.duration_ns)],
    ["End", info.end_detail ? `${describeEnd(info)} (${info.end_detail})` : describeEnd(info)],
  ];
  if (info.rank !== null && info.rank !== undefined) {
    list.push(["Rank", `${info.rank} of ${known(info.world_size)}`]);
  }
  return list;
}

function versionFacts(info: Report, generator: string): Fact[] {
  const { pluggable } = info;
  return [
    ["gpumemtrace", generator.replace(/^gpumemtrace /, "")],
    ["PyTorch", known(info.torch)],
    ["Python", known(info.python)],
    ["CUDA driver", known(info.cuda_driver)],
    ["CUDA runtime", known(info.cuda_runtime)],
    ["PYTORCH_ALLOC_CONF", info.allocator_conf ?? "not set, or unknown"],
    ["Recorded by", known(info.mode)],
    ["PyTorch's trace tracker", known(info.torch_tracker)],
    ...(pluggable ? [["Pluggable allocator", known(JSON.stringify(pluggable))] as Fact] : []),
  ];
}

function lossFacts(info: Report): HTMLElement {
  const losses = Object.entries(info.losses ?? {})
    .filter(([, count]) => count !== 0)
    .map(([name, count]): Fact => [name.replace(/_/g, " "), formatCount(count as number)]);
  const messages = [...(info.incomplete ?? []), ...(info.notes ?? [])] as { message: string }[];
  return h(
    "div",
    {},
    h("p", {}, info.complete ? "The trace is complete." : "The trace is incomplete."),
    losses.length > 0 ? facts(losses) : null,
    messages.length > 0
      ? h("ul", { class: "advice" }, ...messages.map(({ message }) => h("li", {}, message)))
      : null,
  );
}

const STEP_SOURCES: Record<string, string> = {
  marks: "calls of gpumemtrace.step()",
  nvtx: "NVTX ranges",
  optimizer: "calls of an optimizer",
  period: "an allocation that repeats periodically",
};

function stepFacts(report: Report, trace: number): Fact[] {
  const { steps } = report;
  if (!steps || !steps.source) return [["Found by", "no steps were found"]];
  const list: Fact[] = [
    ["Found by", STEP_SOURCES[steps.source] ?? steps.source],
    ["Steps begun", formatCount(steps.count)],
  ];
  if (steps.site) list.push(["Call site", `${steps.site.file}:${steps.site.line}`]);
  if (steps.range) list.push(["NVTX range", steps.range]);
  if (trace !== 0) list.push(["Note", "the report describes the steps of the first trace"]);
  return list;
}

function deviceCard(device: Report): HTMLElement {
  const bytes = (value: number | null | undefined) =>
    value === null || value === undefined ? "unknown" : `${formatCount(value)} B`;
  const { peak, end, residual } = device;
  const measured = residual
    ? `, from ${formatCount(residual.samples)} measurements by ${residual.source}`
    : "";
  const list: Fact[] = [
    ["Name", known(device.name)],
    ["Memory", bytes(device.total_bytes)],
    ["Peak allocated", bytes(peak.live_bytes)],
    ["Peak reserved", bytes(peak.reserved_bytes)],
    ["Peak of the driver", bytes(peak.device_bytes)],
    ["Allocated at the end", bytes(end.live_bytes)],
    ["Outside recorded calls", bytes(device.residual_bytes) + measured],
    ...(device.ledger ?? []).map(({ owner, bytes: held }: Report): Fact =>
      [`Owner: ${owner}`, bytes(held)]),
  ];
  return card(`GPU ${device.device}`, facts(list));
}

function eventFacts(info: Report): Fact[] {
  const list = Object.entries(info.events ?? {}).filter(([, count]) => (count as number) > 0);
  return list.map(([name, count]) => [name.replace(/_/g, " "), formatCount(count as number)]);
}

function pageFacts(reductions: string[], hasSource: boolean): HTMLElement {
  const lines = [...reductions];
  if (reductions.length === 0) lines.push("Nothing was merged or left out to keep the page small.");
  if (!hasSource) lines.push("Source lines are not embedded (--no-source).");
  return h("ul", { class: "advice" }, ...lines.map((line) => h("li", {}, line)));
}

function textCard(text: string): HTMLElement {
  const copy = h("button", {}, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not allowed; select the text";
    }
    setTimeout(() => (copy.textContent = "Copy"), 2000);
  });
  return h(
    "section",
    { class: "card" },
    h("div", { class: "card-head" }, h("h2", {}, "Text report"), copy),
    h("pre", { class: "text-report", tabindex: "0" }, text),
  );
}
