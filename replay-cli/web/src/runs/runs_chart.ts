/** The peaks of all runs over time: a bar for the median over its GPUs, and above it up to the highest. */

import { facts, hideTooltip, showTooltip } from "../draw/tooltip.js";
import { onThemeChange, themeColor } from "../shell/theme.js";
import { createSurface, fitSurface } from "../widgets/canvas.js";
import { h, on } from "../widgets/dom.js";
import { formatBytes } from "../widgets/format.js";
import type { RunData } from "./page_data.js";

const HEIGHT = 200;
const LEFT = 86;
const BOTTOM = 22;
const TOP = 10;
const LINES = 4;

export interface RunsChart {
  /** Draws the chart; the run of this index is marked. */
  draw(selected: number): void;
}

export function createRunsChart(
  section: HTMLElement,
  runs: RunData[],
  onRun: (index: number) => void,
): RunsChart {
  const place = h("div", "runs-chart");
  section.append(place);
  const surface = createSurface(place, "Peak of allocated memory of each run");
  const most_bytes = runs.reduce((most, run) => Math.max(most, run.peak?.most_bytes ?? 0), 1) * 1.1;
  let selected = 0;
  const left = (index: number) => LEFT + ((index + 0.5) / runs.length) * (surface.width - LEFT - 8);
  const top = (bytes: number) => TOP + (1 - bytes / most_bytes) * (HEIGHT - TOP - BOTTOM);
  const runAt = (x: number): number => {
    const index = Math.floor(((x - LEFT) / (surface.width - LEFT - 8)) * runs.length);
    return index >= 0 && index < runs.length ? index : -1;
  };

  function draw(): void {
    fitSurface(surface, HEIGHT);
    const { context, width } = surface;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (let line = 0; line <= LINES; line++) {
      const bytes = (most_bytes * line) / LINES;
      context.fillStyle = themeColor("grid");
      context.fillRect(LEFT, Math.round(top(bytes)), width - LEFT, 1);
      context.fillStyle = themeColor("muted");
      context.textAlign = "right";
      context.fillText(formatBytes(bytes), LEFT - 8, top(bytes));
    }
    const bar = Math.max(2, Math.min(26, ((width - LEFT) / runs.length) * 0.6));
    runs.forEach((run, index) => {
      if (index === selected) {
        context.fillStyle = themeColor("accent-soft");
        context.fillRect(left(index) - bar, TOP, bar * 2, HEIGHT - TOP - BOTTOM);
      }
      if (!run.peak) return;
      const { median_bytes, most_bytes: highest } = run.peak;
      const tone = run.finding?.severity === "critical" ? "critical"
        : run.finding?.severity === "warning" ? "warning" : "accent";
      context.fillStyle = themeColor(tone);
      context.fillRect(left(index) - bar / 2, top(median_bytes), bar, top(0) - top(median_bytes));
      context.globalAlpha = 0.45;
      context.fillRect(left(index) - bar / 2, top(highest), bar, top(median_bytes) - top(highest));
      context.globalAlpha = 1;
    });
    context.fillStyle = themeColor("muted");
    context.textAlign = "left";
    context.fillText(runs[0].started ?? "start unknown", LEFT, HEIGHT - BOTTOM / 2);
    context.textAlign = "right";
    context.fillText(runs[runs.length - 1].started ?? "", width, HEIGHT - BOTTOM / 2);
  }

  onThemeChange(draw);
  on(surface.canvas, "mousemove", (event) => {
    const run = runs[runAt(event.offsetX)];
    if (!run) return hideTooltip();
    showTooltip(event.clientX, event.clientY, facts([
      ["", run.name],
      ["started", run.started ?? "unknown"],
      ["commit", run.git_commit ?? "unknown"],
      ["median peak", formatBytes(run.peak?.median_bytes)],
      ["highest peak", formatBytes(run.peak?.most_bytes)],
      run.finding && ["finding", run.finding.summary],
    ]));
  });
  on(surface.canvas, "mouseleave", hideTooltip);
  on(surface.canvas, "click", (event) => {
    const index = runAt(event.offsetX);
    if (index >= 0) onRun(index);
  });
  on(surface.canvas, "keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const next = selected + (step ?? 0);
    if (!step || next < 0 || next >= runs.length) return;
    event.preventDefault();
    onRun(next);
  });
  return {
    draw(index) {
      selected = index;
      draw();
    },
  };
}
