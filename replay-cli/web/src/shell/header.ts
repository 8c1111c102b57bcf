/** The header: the program, the most severe finding, and the controls of the page. */

import { download } from "../widgets/download.js";
import { fill, h } from "../widgets/dom.js";
import { formatNumberOf, formatTime } from "../widgets/format.js";
import type { Report, TraceModel } from "../data/model.js";
import { isDark, onThemeChange, toggleTheme } from "./theme.js";
import { shortenFiles } from "../wording/sites.js";
import type { Context } from "../view.js";

export interface Header {
  element: HTMLElement;
  update(): void;
  onHelp(listener: () => void): void;
}

/** The command without the directories of its program: "python train.py". */
export function programName(command: string[] | null): string | null {
  if (!command || command.length === 0) return null;
  return [command[0].replace(/^.*\//, ""), ...command.slice(1)].join(" ");
}

/** "python train.py (PyTorch 2.15.0), 60 steps in 1.9 s, exited normally; trace complete" */
export function describeRun(report: Report, trace: TraceModel): string {
  const info = report.traces?.[trace.index];
  if (!info) return trace.data.path;
  const rank = info.rank === null || info.rank === undefined ? "" : `rank ${info.rank}: `;
  const program = programName(info.command) ?? info.path;
  const torch = info.torch ? ` (PyTorch ${String(info.torch).replace(/\+.*/, "")})` : "";
  const steps = trace.data.steps?.count ?? 0;
  const span = formatTime(info.duration_ns);
  const length = steps > 0 ? `${formatNumberOf(steps, "step")} in ${span}` : span;
  const completeness = info.complete ? "trace complete" : "trace incomplete";
  return `${rank}${program}${torch}, ${length}, ${describeEnd(info)}; ${completeness}`;
}

export function describeEnd(info: Report): string {
  const code = /^exit (\d+)$/.exec(info.end_detail ?? "")?.[1];
  if (info.end === "exit") {
    return code && code !== "0" ? `exited with code ${code}` : "exited normally";
  }
  const detail = info.end_detail ? ` (${info.end_detail})` : "";
  if (info.end === "running") return "still running";
  return `${info.end}${detail}`;
}

/** The most severe finding of a trace, and its severity. */
export function verdictOf(report: Report, trace: number): { severity: string; summary: string } {
  const first = report.verdicts?.find((verdict: Report) =>
    verdict.trace === trace && verdict.severity !== "info");
  if (first) return first;
  const assessment = report.leak_assessment?.find((each: Report) => each.trace === trace);
  if (assessment && assessment.status !== "assessed") {
    const how = assessment.status === "partly" ? "were assessed in part" : "could not be assessed";
    return { severity: "info", summary: `No problems found; leaks ${how}` };
  }
  return { severity: "good", summary: "No problems found" };
}

export function createHeader(context: Context, reportBytes: BlobPart): Header {
  const { model } = context;
  const verdict = h("p", { class: "verdict" });
  const program = h("p", { class: "program" });
  const picker = h("div", { class: "pickers" });
  const theme = h("button", { onclick: toggleTheme });
  const help = h("button", { title: "Keyboard and mouse (key ?)" }, "Help");
  const json = h("button", { title: "The exact report of gpumemtrace replay --json" });
  json.textContent = "report.json";
  json.addEventListener("click", () => download("report.json", "application/json", reportBytes));
  const nameTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.title = `${isDark() ? "Light" : "Dark"} theme (key t)`;
  };
  nameTheme();
  onThemeChange(nameTheme);

  const element = h(
    "header",
    { class: "top" },
    h("div", { class: "headline" }, h("h1", {}, verdict), program),
    h("div", { class: "controls" }, picker, json, theme, help),
  );
  createPickers(context, picker);
  return {
    element,
    update() {
      const { trace } = context.selection();
      const found = verdictOf(model.report, trace);
      verdict.dataset.severity = found.severity;
      verdict.textContent = shortenFiles(model.traces[trace], found.summary);
      verdict.title = found.summary;
      const text = model.traces[trace] ? describeRun(model.report, model.traces[trace]) : "";
      program.textContent = text;
      program.title = text;
      updatePickers(context, picker);
    },
    onHelp: (listener) => help.addEventListener("click", listener),
  };
}

function createPickers(context: Context, parent: HTMLElement): void {
  const { model } = context;
  const pick = (name: string, key: "trace" | "device") => {
    const select = h("select", { "aria-label": name, name: key });
    select.addEventListener("change", () => context.select({ [key]: Number(select.value) }));
    return select;
  };
  if (model.traces.length > 1) parent.append(pick("Trace", "trace"));
  if (model.traces.some((trace) => trace.devices.length > 1)) parent.append(pick("GPU", "device"));
}

function updatePickers(context: Context, parent: HTMLElement): void {
  const { model } = context;
  const selection = context.selection();
  for (const select of parent.querySelectorAll("select")) {
    const names = select.name === "trace"
      ? model.traces.map((trace) => traceName(trace))
      : (model.traces[selection.trace]?.devices ?? []).map((each) => `GPU ${each.data.ordinal}`);
    if (select.options.length !== names.length) {
      fill(select, ...names.map((name, index) => h("option", { value: index }, name)));
    }
    select.value = String(selection[select.name as "trace" | "device"]);
  }
}

/** "rank 3", or the file's name. */
export function traceName(trace: TraceModel): string {
  const { rank, path } = trace.data;
  return rank === null ? path.replace(/^.*\//, "") : `rank ${rank}`;
}
