/** Call sites, frames and stacks of the report in words. */

import { formatTime } from "../widgets/format.js";
import { fileName, shortPath } from "../views/flame/names.js";
import type { TraceModel } from "../data/model.js";
import type { PageSite } from "../data/page_data.js";
import type { ReportFrame, ReportSite } from "../data/report_types.js";

/** The site of the page with the id of a site of the report; null if the page lacks it. */
export function pageSite(trace: TraceModel | undefined, site: ReportSite): PageSite | null {
  return trace?.sites.find((each) => each.id === site.id) ?? null;
}

/** `train.py:31 in log()`, as the page names it elsewhere. */
export function siteLabel(trace: TraceModel | undefined, site: ReportSite): string {
  return pageSite(trace, site)?.label ?? describeSite(site);
}

/** A sentence of the report with the files of call sites as short as in their labels. */
export function shortenFiles(trace: TraceModel | undefined, sentence: string): string {
  for (const { file, line, label } of trace?.sites ?? []) {
    const end = label.indexOf(`:${line}`);
    if (file && end > 0 && sentence.includes(file)) {
      sentence = sentence.replaceAll(file, label.slice(0, end));
    }
  }
  return sentence;
}

function describeSite(site: ReportSite): string {
  if (site.module !== null) return describeNative(site);
  if (site.file === null) return "<no Python frame>";
  const name = site.function === null ? "" : ` in ${functionName(site.function)}`;
  const backward = site.is_backward ? " (backward)" : "";
  return `${shortPath(site.file)}:${site.line ?? "?"}${name}${backward}`;
}

function functionName(name: string): string {
  return name.endsWith(">") ? name : `${name}()`;
}

/** `grow (pool.cpp:41)`, or the known part of it, down to `libpool.so+0x1234`. */
function describeNative(site: ReportSite | ReportFrame): string {
  const module = site.module === null ? "unknown module" : fileName(site.module);
  const offset = site.offset == null ? "" : `+0x${site.offset.toString(16)}`;
  const line = site.line === null ? "" : `:${site.line}`;
  const source = site.file === null ? null : shortPath(site.file) + line;
  if (site.function !== null) return `${site.function} (${source ?? module})`;
  return source === null ? module + offset : `${module}${offset} (${source})`;
}

export function frameText(frame: ReportFrame): string {
  if (frame.kind === "native") return describeNative(frame);
  if (frame.function === "<backward>") return "(backward pass of the forward call below)";
  const file = frame.file === null ? "unknown file" : shortPath(frame.file);
  const name = frame.function === null ? "unknown function" : functionName(frame.function);
  return `${file}:${frame.line ?? "?"} in ${name}`;
}

/** `1.43 s in, step 24`. */
export function momentText(time_ns: number, step: number | null): string {
  const at = step === null ? "" : `, step ${formatSteps(step)}`;
  return `${formatTime(time_ns)} in${at}`;
}

function formatSteps(step: number): string {
  return step.toString().replace(/\B(?=(\d{3})+$)/g, ",");
}
