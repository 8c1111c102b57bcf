/** Bytes and blocks of every call site at the moments that the page knows exactly. */

import type { ByStack, DeviceModel, Report, TraceModel } from "./model.js";
import type { Keyframe } from "./page_data.js";
import { sumBySite } from "../shell/selection.js";

/** Totals by index in `trace.sites`. */
export interface SiteTotals {
  bytes: Float64Array;
  count: Float64Array;
}

/** Totals at the peak, from the report; null if the report has none. */
export function totalsAtPeak(
  report: Report,
  trace: TraceModel,
  device: DeviceModel,
): SiteTotals | null {
  const peak = report.peak?.find((each: Report) =>
    each.trace === trace.index && each.device === device.data.ordinal);
  if (!peak) return null;
  const totals = emptyTotals(trace.sites.length);
  const indices = new Map(trace.sites.map((site, index) => [site.id, index]));
  for (const { site, bytes, blocks } of peak.sites) {
    const index = indices.get(site.id);
    if (index === undefined) continue;
    totals.bytes[index] += bytes;
    totals.count[index] += blocks;
  }
  return totals;
}

/** Totals when the program finished, from its keyframe; null without one. */
export function totalsAtEnd(trace: TraceModel, device: DeviceModel): SiteTotals | null {
  const keyframe = device.data.keyframes.find((each) => each.why === "end");
  return keyframe ? totalsOfKeyframe(trace, device, keyframe) : null;
}

/** Totals at a keyframe of exactly this time, or else at the nearest edge of the blocks. */
export function totalsAt(trace: TraceModel, device: DeviceModel, time_ns: number): SiteTotals {
  const keyframe = device.data.keyframes.find((each) => each.time_ns === time_ns);
  if (keyframe) return totalsOfKeyframe(trace, device, keyframe);
  return sumBySite(trace, device.liveAtEdge(device.nearestEdge(time_ns)));
}

export function totalsOfKeyframe(
  trace: TraceModel,
  device: DeviceModel,
  keyframe: Keyframe,
): SiteTotals {
  return sumBySite(trace, sumKeyframe(trace, device, keyframe));
}

/** Blocks of a keyframe by stack. */
export function sumKeyframe(
  trace: TraceModel,
  device: DeviceModel,
  { blocks }: Keyframe,
): ByStack {
  const totals = emptyTotals(trace.stackNode.length);
  const bytes = device.column(blocks.bytes);
  device.column(blocks.stack).forEach((stack, block) => {
    totals.bytes[stack] += bytes[block];
    totals.count[stack]++;
  });
  return totals;
}

function emptyTotals(length: number): SiteTotals {
  return { bytes: new Float64Array(length), count: new Float64Array(length) };
}
