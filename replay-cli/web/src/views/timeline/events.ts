/** What happened when: steps, phases, marks, the peak and out-of-memory errors. */

import { HUES } from "../../widgets/colors.js";
import { formatBytes } from "../../widgets/format.js";
import type { DeviceModel, Model, Report, TraceModel } from "../../data/model.js";

export interface Moment {
  kind: "oom" | "peak" | "mark";
  time_ns: number;
  label: string;
}

export interface Phase {
  name: string;
  color: string;
  begin_ns: Float64Array;
  end_ns: Float64Array;
}

export interface Events {
  /** Begins of steps 1, 2, 3... */
  steps: Float64Array;
  phases: Phase[];
  /** Names of phases that are not shown, as there is no room for more lanes. */
  hiddenPhases: string[];
  /** Most important first. */
  moments: Moment[];
}

const MAX_LANES = 4;

export function collectEvents(model: Model, trace: TraceModel, device: DeviceModel): Events {
  const isHere = (each: Report) =>
    each.trace === trace.index && each.device === device.data.ordinal;
  const ooms = (model.report.oom ?? []).filter(isHere);
  const peak = (model.report.peak ?? []).find(isHere);
  const moments: Moment[] = ooms.map((oom: Report) => ({
    kind: "oom",
    time_ns: oom.time_ns,
    label: `out of memory: ${formatBytes(oom.requested_bytes)}`,
  }));
  if (peak) {
    const label = `peak: ${formatBytes(peak.live_bytes)}`;
    moments.push({ kind: "peak", time_ns: peak.time_ns, label });
  }
  for (const mark of trace.data.marks) {
    moments.push({ kind: "mark", time_ns: mark.time_ns, label: mark.name });
  }
  const phases = trace.data.phases.map((phase, index) => ({
    name: phase.name,
    color: HUES[index % HUES.length],
    begin_ns: device.column(phase.begin_ns),
    end_ns: device.column(phase.end_ns),
  }));
  return {
    steps: trace.stepStarts,
    phases: phases.slice(0, MAX_LANES),
    hiddenPhases: phases.slice(MAX_LANES).map((phase) => phase.name),
    moments,
  };
}
