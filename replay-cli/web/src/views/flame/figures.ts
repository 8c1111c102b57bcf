/**
 * What a flame graph measures: live, kept, churn or the peak, or the difference of two moments.
 *
 * Live, kept and churn are exact at the edges of the table of blocks only. A selected moment is
 * moved to the nearest edge, and the caption names the edge. The peak comes from its own keyframe.
 */

import { describeEdge, describeExactMoment, edgeTime } from "../../draw/moments.js";
import { sumKeyframe } from "../../data/site_totals.js";
import { formatTime } from "../../widgets/format.js";
import type { ByStack, DeviceModel, TraceModel } from "../../data/model.js";
import type { Keyframe } from "../../data/page_data.js";
import type { Selection } from "../../view.js";
import { selectedMoment, selectedWindow } from "../../shell/selection.js";

export type Mode = "peak" | "live" | "kept" | "churn" | "difference" | "traces";

export interface Figures {
  /** Totals by stack at the moment, or at the second one of a difference. */
  after: ByStack;
  /** Totals at the first moment of a difference; null for other modes. */
  before: ByStack | null;
  /** Blocks of `after` that are new since `before`; null if that is unknown. */
  fresh: ByStack | null;
  /** A sentence on what is shown, with the exact moments. */
  caption: string;
  /** How far the selected moments were moved; null if they were not. */
  snapped: string | null;
  /** Exact times shown: one, or begin and end. */
  times: number[];
}

export function defaultMode(selection: Selection, hasPeak: boolean): Mode {
  if (selectedWindow(selection)) return "kept";
  return selectedMoment(selection) !== null || !hasPeak ? "live" : "peak";
}

export function measure(
  mode: Mode,
  trace: TraceModel,
  device: DeviceModel,
  selection: Selection,
): Figures {
  if (mode === "peak") {
    const keyframe = findKeyframe(device, "peak");
    if (keyframe) {
      const moment = describeExactMoment(trace, keyframe.time_ns);
      const caption = `Live blocks at the exact peak of allocated memory: ${moment}.`;
      return single(sumKeyframe(trace, device, keyframe), caption, null, [keyframe.time_ns]);
    }
  }
  if (mode === "peak" || mode === "live") return measureLive(trace, device, selection);
  return measureWindow(mode, trace, device, selection);
}

function measureLive(trace: TraceModel, device: DeviceModel, selection: Selection): Figures {
  const wanted = selectedMoment(selection) ?? selection.to_ns ?? programEnd(trace, device);
  const exact = device.data.keyframes.find((keyframe) => keyframe.time_ns === wanted);
  if (exact) {
    const caption = `Live blocks at ${describeExactMoment(trace, wanted)}; an exact keyframe.`;
    return single(sumKeyframe(trace, device, exact), caption, null, [wanted]);
  }
  const edge = device.nearestEdge(wanted);
  const caption = `Live blocks at ${describeEdge(trace, device, edge)}.`;
  const shown = edgeTime(device, edge);
  const snapped = selection.from_ns === null ? null : describeSnap(device, [wanted], [shown]);
  return single(device.liveAtEdge(edge), caption, snapped, [shown]);
}

function measureWindow(
  mode: Mode,
  trace: TraceModel,
  device: DeviceModel,
  selection: Selection,
): Figures {
  const { edges, wanted } = windowEdges(mode, trace, device, selection);
  const [from, to] = edges;
  const moments = edges.map((edge) => describeEdge(trace, device, edge));
  const times = edges.map((edge) => edgeTime(device, edge));
  const snapped = wanted && describeSnap(device, wanted, times);
  if (mode === "kept") {
    const caption = `Blocks allocated after ${moments[0]} and still live at ${moments[1]}.`;
    return single(device.keptBetween(from, to), caption, snapped, times);
  }
  if (mode === "churn") {
    const caption = `Blocks allocated after ${moments[0]} and freed by ${moments[1]}.`;
    return single(device.churnBetween(from, to), caption, snapped, times);
  }
  return {
    after: device.liveAtEdge(to),
    before: device.liveAtEdge(from),
    fresh: device.keptBetween(from, to),
    caption: `A: live at ${moments[0]}. B: live at ${moments[1]}.`,
    snapped,
    times,
  };
}

/** Edges of the selected window; of the whole run, or of its second half for a difference. */
export function windowEdges(
  mode: Mode,
  trace: TraceModel,
  device: DeviceModel,
  selection: Selection,
): { edges: [number, number]; wanted: number[] | null } {
  const last = device.nearestEdge(programEnd(trace, device));
  const window = selectedWindow(selection);
  if (window) {
    const wanted = [window.from_ns, window.to_ns];
    const edges = wanted.map((time) => device.nearestEdge(time)) as [number, number];
    return { edges, wanted };
  }
  const moment = selectedMoment(selection);
  if (moment !== null) return { edges: [device.nearestEdge(moment), last], wanted: null };
  return { edges: [mode === "difference" ? last >> 1 : 0, last], wanted: null };
}

/** When the program finished: before the interpreter frees what is left, if that is known. */
export function programEnd(trace: TraceModel, device: DeviceModel): number {
  return findKeyframe(device, "end")?.time_ns ?? trace.data.end_ns;
}

/**
 * Live blocks of two traces, the earlier one first: at the selected step's end or, without steps,
 * at the selected time; at their peaks if no moment is selected.
 */
export function compareTraces(
  traces: [TraceModel, TraceModel],
  devices: [DeviceModel, DeviceModel],
  selected: TraceModel,
  selection: Selection,
): Figures {
  const moment = selectedMoment(selection);
  const sides = traces.map((trace, i) => moment === null
    ? sideAtPeak(trace, devices[i])
    : sideAt(trace, devices[i], moment, selected.stepAt(moment)));
  const own = traces.indexOf(selected);
  return {
    after: sides[1].totals,
    before: sides[0].totals,
    fresh: null,
    caption: `A: ${sides[0].text}. B: ${sides[1].text}. Frames are matched by function and file.`,
    snapped: null,
    times: moment === null || own < 0 ? [] : [sides[own].time],
  };
}

/** One of two traces: its blocks, a phrase on the moment, and the moment. */
interface Side {
  totals: ByStack;
  text: string;
  time: number;
}

function sideAtPeak(trace: TraceModel, device: DeviceModel): Side {
  const keyframe = findKeyframe(device, "peak");
  if (!keyframe) {
    const { bins } = device.data.blocks;
    const text = `end of ${trace.data.path}; its peak is unknown`;
    return { totals: device.liveAtEdge(bins), text, time: trace.data.end_ns };
  }
  const { time_ns } = keyframe;
  const text = `peak of ${trace.data.path} at ${describeExactMoment(trace, time_ns)}`;
  return { totals: sumKeyframe(trace, device, keyframe), text, time: time_ns };
}

function sideAt(trace: TraceModel, device: DeviceModel, time: number, step: number | null): Side {
  const starts = trace.stepStarts;
  const hasStep = step !== null && starts.length > 0;
  const wanted = hasStep ? (starts[step] ?? programEnd(trace, device) + 1) - 1 : time;
  const edge = device.nearestEdge(wanted);
  const text = `live in ${trace.data.path} at ${describeEdge(trace, device, edge)}`;
  return { totals: device.liveAtEdge(edge), text, time: edgeTime(device, edge) };
}

export function findKeyframe(device: DeviceModel, why: string): Keyframe | null {
  return device.data.keyframes.find((keyframe) => keyframe.why === why) ?? null;
}

function single(
  after: ByStack,
  caption: string,
  snapped: string | null,
  times: number[],
): Figures {
  return { after, before: null, fresh: null, caption, snapped, times };
}

function describeSnap(device: DeviceModel, wanted: number[], shown: number[]): string | null {
  const moved = Math.max(...wanted.map((time, i) => Math.abs(time - shown[i])));
  if (moved < 1) return null;
  const edges = device.edges().length;
  return `Moved by ${formatTime(moved)} to the nearest of ${edges} moments at which totals are exact.`;
}
