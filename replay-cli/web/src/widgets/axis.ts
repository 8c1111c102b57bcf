/**
 * Maps times to positions on the axis, which is linear in time or has equal steps.
 *
 * A position is in seconds, or a step number with the elapsed share of that step as its fraction.
 */

import { clamp } from "./clamp.js";
import { firstAtLeast } from "../data/block_table.js";
import { formatCount, formatTime } from "./format.js";
import type { TraceModel } from "../data/model.js";

export interface Tick {
  at: number;
  label: string;
}

export interface Axis {
  unit: "time" | "step";
  /** Position of a time. Both directions are strictly monotonic. */
  position(time_ns: number): number;
  time(position: number): number;
  /** At most `most` ticks between two positions. */
  ticks(from: number, to: number, most: number): Tick[];
  /** Words for a time: "step 12 (1.13 s)". */
  describe(time_ns: number): string;
}

export function createAxis(trace: TraceModel, unit: "time" | "step"): Axis {
  return unit === "step" && trace.stepStarts.length > 0 ? stepAxis(trace) : timeAxis(trace);
}

function describe(trace: TraceModel, time_ns: number): string {
  const step = trace.stepAt(time_ns);
  const time = formatTime(Math.round(time_ns));
  return step === null ? time : `step ${formatCount(step)} (${time})`;
}

function timeAxis(trace: TraceModel): Axis {
  return {
    unit: "time",
    position: (time_ns) => time_ns / 1e9,
    time: (position) => position * 1e9,
    ticks: (from, to, most) => timeTicks(from, to, most),
    describe: (time_ns) => describe(trace, time_ns),
  };
}

function stepAxis(trace: TraceModel): Axis {
  // What is before the first step is step 0, so boundary `i` is the begin of step `i`.
  const boundaries = new Float64Array(trace.stepStarts.length + 2);
  boundaries.set(trace.stepStarts, 1);
  boundaries[boundaries.length - 1] = lastMoment(trace);
  for (let i = 1; i < boundaries.length; i++) {
    if (boundaries[i] <= boundaries[i - 1]) boundaries[i] = boundaries[i - 1] + 1;
  }
  const last = boundaries.length - 2;
  return {
    unit: "step",
    position(time_ns) {
      const step = clamp(firstAtLeast(boundaries, time_ns) - 1, 0, last);
      return step + (time_ns - boundaries[step]) / (boundaries[step + 1] - boundaries[step]);
    },
    time(position) {
      const step = clamp(Math.floor(position), 0, last);
      return boundaries[step] + (position - step) * (boundaries[step + 1] - boundaries[step]);
    },
    ticks(from, to, most) {
      const distance = Math.max(1, niceDistance((to - from) / most));
      const ticks: Tick[] = [];
      for (let at = Math.ceil(from / distance) * distance; at <= to; at += distance) {
        ticks.push({ at, label: `step ${formatCount(at)}` });
      }
      return ticks;
    },
    describe: (time_ns) => describe(trace, time_ns),
  };
}

/** The end of the recording, or of the bins if a damaged trace claims that they reach further. */
export function lastMoment(trace: TraceModel): number {
  return Math.max(trace.data.end_ns, trace.stepStarts.at(-1) ?? 0, 1);
}

/** The smallest of 1, 2, 5, 10, 20... times a power of ten that is at least `least`. */
export function niceDistance(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  for (const factor of [1, 2, 5]) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

const SECONDS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

function timeTicks(from: number, to: number, most: number): Tick[] {
  const least = (to - from) / most;
  const distance = least <= 30
    ? niceDistance(least)
    : SECONDS.find((seconds) => seconds >= least) ?? niceDistance(least);
  const ticks: Tick[] = [];
  const first = Math.ceil(from / distance - 1e-9);
  for (let index = first; index * distance <= to; index++) {
    const at = index * distance;
    ticks.push({ at, label: tickLabel(at, distance) });
  }
  return ticks;
}

/** As many digits as tell neighbouring ticks apart. */
function tickLabel(seconds: number, distance: number): string {
  if (distance >= 60) {
    const minutes = Math.round(seconds / 60);
    const hours = Math.floor(minutes / 60);
    return hours > 0 ? `${hours} h ${String(minutes % 60).padStart(2, "0")} min` : `${minutes} min`;
  }
  const [scale, unit] = distance >= 0.1 ? [1, "s"]
    : distance >= 1e-4 ? [1e3, "ms"] : [1e6, "\u00b5s"];
  const decimals = Math.max(0, -Math.floor(Math.log10(distance * scale) + 1e-9));
  return `${(seconds * scale).toFixed(decimals)} ${unit}`;
}

/** Ticks at round numbers of KiB, MiB or GiB between 0 and `most_bytes`. */
export function byteTicks(most_bytes: number, count: number): number[] {
  // From three on, the distance is below the top.
  const least = Math.max(most_bytes / Math.max(count, 3), 1);
  const unit = 1024 ** Math.floor(Math.log2(least) / 10);
  const inUnit = least / unit;
  const isMixed = most_bytes >= 1024 * unit && inUnit > 50;
  // Where the labels change their unit, only such distances stay round.
  const factor = isMixed ? [128, 256, 512, 1024].find((each) => each >= inUnit) ?? 1024
    : inUnit > 500 ? 1024 : niceDistance(inUnit);
  const distance = factor * unit;
  const ticks: number[] = [];
  for (let bytes = 0; bytes <= most_bytes; bytes += distance) ticks.push(bytes);
  return ticks;
}
