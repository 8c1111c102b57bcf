/** The tables of a page of many ranks. */

import type { Child } from "../widgets/dom.js";
import { h } from "../widgets/dom.js";
import { formatByteChange, formatBytes, formatCount } from "../widgets/format.js";
import type { TableColumn } from "../widgets/table.js";
import type { FindingData, LineData, OomData, RankData, RegressionData, RunData } from "./page_data.js";

type Value = number | string | null;

function text<Row>(key: string, title: string, value: (row: Row) => string | null): TableColumn<Row> {
  return { key, title, value, cell: (row) => value(row) ?? "unknown" };
}

function number<Row>(
  key: string,
  title: string,
  value: (row: Row) => number | null,
  format: (value: number | null) => string,
): TableColumn<Row> {
  return { key, title, value, cell: (row) => format(value(row)), isNumber: true };
}

function badge(finding: FindingData | null): Child {
  if (!finding) return null;
  return h("span", { class: "badge", "data-severity": finding.severity }, finding.severity);
}

function finding<Row>(of: (row: Row) => FindingData | null): TableColumn<Row> {
  const order = ["info", "warning", "critical"];
  return {
    key: "finding",
    title: "finding",
    value: (row): Value => {
      const found = of(row);
      // Descending by severity, as numbers are.
      return found ? order.indexOf(found.severity) : null;
    },
    cell: (row) => {
      const found = of(row);
      return h("div", {}, badge(found), " ", found?.summary ?? "none");
    },
    isNumber: false,
  };
}

export const runColumns: TableColumn<RunData>[] = [
  text("started", "started", (run) => run.started),
  text("name", "run", (run) => run.name),
  text("commit", "commit", (run) => run.git_commit?.slice(0, 12) ?? null),
  text("program", "program", (run) => run.program),
  text("torch", "torch", (run) => run.torch),
  number("traces", "traces", (run) => run.traces, formatCount),
  number("median", "median peak", (run) => run.peak?.median_bytes ?? null, formatBytes),
  number("most", "highest peak", (run) => run.peak?.most_bytes ?? null, formatBytes),
  finding((run) => run.finding),
];

export const rankColumns: TableColumn<RankData>[] = [
  { key: "rank", title: "rank", value: (rank) => rank.rank ?? rank.name, cell: (rank) => rank.name },
  text("host", "host", (rank) => rank.host),
  text("end", "ended", (rank) => rank.end),
  number("steps", "steps", (rank) => rank.steps, formatCount),
  number("peak", "peak allocated", (rank) => rank.peak_live_bytes, formatBytes),
  number("reserved", "peak reserved", (rank) => rank.peak_reserved_bytes, formatBytes),
  number("total", "GPU memory", (rank) => rank.total_bytes, formatBytes),
  finding((rank) => rank.finding),
  { ...text("path", "trace", (rank: RankData) => rank.path),
    cell: (rank) => h("code", {}, rank.path) },
];

export const lineColumns: TableColumn<LineData>[] = [
  { ...text("line", "line", (line: LineData) => line.line), cell: (line) => h("code", {}, line.line) },
  text("kind", "memory", (line) => line.kind.replace("_", " ")),
  number("bytes", "bytes, all ranks", (line) => line.bytes, formatBytes),
  number("rate", "per step, at most", (line) => line.bytes_per_step,
    (rate) => (rate === null ? "unknown" : formatByteChange(Math.round(rate)))),
  number("step", "from step", (line) => line.first_step, formatCount),
  { ...number("ranks", "ranks", (line: LineData) => line.ranks, formatCount),
    cell: (line) => line.names },
];

export const oomColumns: TableColumn<OomData>[] = [
  number("step", "step", (oom) => oom.step, formatCount),
  text("rank", "rank", (oom) => oom.rank),
  number("requested", "requested", (oom) => oom.requested_bytes, formatBytes),
  { ...text("line", "line", (oom: OomData) => oom.line), cell: (oom) => h("code", {}, oom.line) },
];

export const regressionColumns: TableColumn<RegressionData>[] = [
  { ...text("line", "line", (row: RegressionData) => row.line), cell: (row) => h("code", {}, row.line) },
  number("growth", "growth", (row) => row.after_bytes - row.before_bytes,
    (bytes) => formatByteChange(bytes ?? 0)),
  number("before", "before", (row) => row.before_bytes, formatBytes),
  number("after", "after", (row) => row.after_bytes, formatBytes),
  text("from", "from", (row) => row.before_commit?.slice(0, 12) ?? row.before),
  text("to", "to", (row) => row.after_commit?.slice(0, 12) ?? row.after),
  text("program", "program", (row) => row.program),
];
