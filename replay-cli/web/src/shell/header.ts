/** The header: the program, the most severe finding, and the controls of the page. */

import { download } from "../widgets/download.js";
import { fill, h, on } from "../widgets/dom.js";
import type { TraceModel } from "../data/model.js";
import { isDark, onThemeChange, toggleTheme } from "./theme.js";
import type { Context } from "../view.js";

export interface Header {
  element: HTMLElement;
  /** `view` is the shown one. */
  update(view: string): void;
  onHelp(listener: () => void): void;
}

export function createHeader(context: Context, reportBytes: BlobPart): Header {
  const { model } = context;
  const title = h("h1");
  const program = h("p", "program");
  const picker = h("div", "pickers");
  const theme = h("button", { onclick: toggleTheme });
  const help = h("button", { title: "Keyboard and mouse (key ?)" }, "Help");
  const json = h("button", { title: "The exact report of gpumemtrace replay --json" });
  json.textContent = "report.json";
  on(json, "click", () => download("report.json", "application/json", reportBytes));
  const nameTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.title = `${isDark() ? "Light" : "Dark"} theme (key t)`;
  };
  nameTheme();
  onThemeChange(nameTheme);

  const element = h(
    "header",
    "top",
    h("div", "headline", title, program),
    h("div", "controls", picker, json, theme, help),
  );
  createPickers(context, picker);
  return {
    element,
    update(view) {
      const { headline } = model.data.cards[context.selection().trace];
      // The overview has the findings, so there the title is the program.
      const verdict = view === "overview" ? headline.above_findings : headline.verdict;
      title.className = verdict === null ? "program" : "verdict";
      title.dataset.severity = verdict === null ? "" : headline.severity;
      title.title = title.textContent = verdict ?? headline.program;
      program.hidden = verdict === null;
      program.title = program.textContent = headline.program;
      updatePickers(context, picker);
    },
    onHelp: (listener) => on(help, "click", listener),
  };
}

function createPickers(context: Context, parent: HTMLElement): void {
  const { model } = context;
  const pick = (name: string, key: "trace" | "device") => {
    const select = h("select", { "aria-label": name, name: key });
    on(select, "change", () => context.visit({ [key]: Number(select.value) }));
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
