/** Moments in words and as edges: `step 12 (1.240117345 s)`. */

import type { DeviceModel, TraceModel } from "../data/model.js";
import { formatCount } from "../widgets/format.js";

/** The exact time in seconds, with as many digits as it has: `1.240117345 s`. */
export function formatExactTime(time_ns: number): string {
  const whole = Math.floor(time_ns / 1e9);
  const rest = Math.round(time_ns - whole * 1e9).toString().padStart(9, "0");
  return `${formatCount(whole)}.${rest.replace(/(?<=...)(000)+$/, "")} s`;
}

/** `step 12 (1.240117345 s)`; only the time if steps are unknown. */
export function describeExactMoment(trace: TraceModel, time_ns: number): string {
  const step = trace.stepAt(time_ns);
  const time = formatExactTime(time_ns);
  return step === null ? time : `step ${formatCount(step)} (${time})`;
}

/** Time of an edge of the table of blocks. Edge 0 lies before the first event. */
export function edgeTime(device: DeviceModel, edge: number): number {
  return Math.max(0, device.edges()[edge]);
}

export function describeEdge(trace: TraceModel, device: DeviceModel, edge: number): string {
  return describeExactMoment(trace, edgeTime(device, edge));
}
