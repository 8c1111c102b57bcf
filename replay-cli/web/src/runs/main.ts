/** The page of many ranks or many runs: reads its data and shows it. */

import { readBlob, startPage } from "../shell/start_page.js";
import { isDark, onThemeChange, toggleTheme } from "../shell/theme.js";
import { fill, h, on } from "../widgets/dom.js";
import { download } from "../widgets/download.js";
import { formatNumberOf } from "../widgets/format.js";
import { createTable, type TableColumn } from "../widgets/table.js";
import { createHeatMap } from "./heat_map.js";
import type { RunsPage, RunData } from "./page_data.js";
import { createRunsChart, type RunsChart } from "./runs_chart.js";
import { lineColumns, oomColumns, rankColumns, regressionColumns, runColumns } from "./tables.js";

const ROWS = 12;

async function start(app: HTMLElement): Promise<void> {
  const bytes = await readBlob("report");
  show(app, JSON.parse(new TextDecoder().decode(bytes)) as RunsPage, bytes);
}

function show(app: HTMLElement, page: RunsPage, bytes: BlobPart): void {
  window.gpumemtraceRuns = page;
  const { runs } = page;
  const hasRuns = runs.length > 1;
  const main = h("div", { class: "runs", "data-view": "runs" });
  fill(app, header(page, bytes), h("main", {}, main));
  for (const note of page.notes) main.append(h("p", "muted", note));
  let selected = runs.length - 1;
  const wanted = decodeURIComponent(location.hash.replace(/^#run=/, ""));
  const named = runs.findIndex((run) => run.name === wanted);
  if (named >= 0) selected = named;

  let chart: RunsChart | null = null;
  const select = (index: number) => {
    selected = index;
    history.replaceState(null, "", `#run=${encodeURIComponent(runs[index].name)}`);
    update();
  };
  const runTable = createTable<RunData>({
    caption: "Runs", columns: runColumns, limit: ROWS, sortKey: "started",
    onRow: (run) => select(runs.indexOf(run)),
    isSelected: (run) => run === runs[selected],
  });
  if (hasRuns) {
    const section = h("section", "card", h("h2", {}, "Peak of allocated memory by run"));
    chart = createRunsChart(section, runs, select);
    section.append(h("p", "muted",
      "A bar shows the median peak of a run's GPUs; its lighter part reaches the highest peak. Select a run to see it below."),
      runTable.element);
    main.append(section);
    main.append(tableCard("What grew between versions", regressionColumns, page.regressions, "growth",
      "No function is known to have grown by 5% and 1 MiB between consecutive versions of a program."));
  }
  const detail = h("div", "one-run");
  main.append(detail);
  const title = h("h2", "run-title");
  const missing = h("div", { class: "losses", role: "alert" });
  const heat = h("section", "card");
  const tables = h("div", "run-tables");
  fill(detail, title, missing, heat, tables);
  const map = createHeatMap(heat);

  function update(): void {
    const run = runs[selected];
    runTable.update(runs);
    chart?.draw(selected);
    title.textContent = hasRuns ? run.name : "";
    title.hidden = !hasRuns;
    missing.hidden = run.missing.length === 0;
    fill(missing, h("strong", {}, "Some data is missing"),
      h("ul", {}, ...run.missing.map((sentence) => h("li", {}, sentence))));
    fill(tables,
      tableCard("Lines that leak", lineColumns, run.lines, "bytes", "No leaks found."),
      tableCard("Out-of-memory errors", oomColumns, run.ooms, "step", "No out-of-memory errors."),
      run.ranks && tableCard("Ranks", rankColumns, run.ranks, "peak", "No GPU was used."),
      h("section", "card", h("h2", {}, "As text"), h("pre", "text-report", run.text)));
    map.show(run);
  }
  update();
  on(window, "resize", () => {
    chart?.draw(selected);
    map.resize();
  });
}

function tableCard<Row>(
  title: string,
  columns: TableColumn<Row>[],
  rows: Row[],
  sortKey: string,
  empty: string,
): HTMLElement {
  const section = h("section", "card", h("h2", {}, title));
  if (rows.length === 0) {
    section.append(h("p", "muted", empty));
    return section;
  }
  const table = createTable<Row>({ caption: title, columns, limit: ROWS, sortKey });
  table.update([...rows]);
  section.append(h("div", "scroll-x", table.element));
  return section;
}

function header({ headline, runs }: RunsPage, bytes: BlobPart): HTMLElement {
  const theme = h("button", { onclick: toggleTheme });
  const nameTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.title = `${isDark() ? "Light" : "Dark"} theme`;
  };
  nameTheme();
  onThemeChange(nameTheme);
  const json = h("button", { title: "The data of this page" }, "runs.json");
  on(json, "click", () => download("runs.json", "application/json", bytes));
  const count = runs.length > 1 ? `${formatNumberOf(runs.length, "run")}; the latest: ` : "";
  return h("header", "top",
    h("div", "headline",
      h("h1", {}, h("p", { class: "verdict", "data-severity": headline.severity }, headline.verdict)),
      h("p", "program", `${count}${headline.program}`)),
    h("div", "controls", json, theme));
}

declare global {
  interface Window {
    /** The data of the page, for tests and for the console. */
    gpumemtraceRuns?: RunsPage;
  }
}

startPage(start);
