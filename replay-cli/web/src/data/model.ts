/** Typed access to the data of the page: decoded columns, and exact answers at bin edges. */

import type { DeviceData, Frame, PageData, PageSite, TraceData } from "./page_data.js";

/** The part of the JSON report that the page reads. Every other key is present, too. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Report = any;

export interface Model {
  data: PageData;
  report: Report;
  traces: TraceModel[];
}

export interface TraceModel {
  index: number;
  data: TraceData;
  /** Start of steps 1, 2, 3...; empty without steps. */
  stepStarts: Float64Array;
  frames: Frame[];
  /** Parent and frame of node `i`; index 0 is the root. */
  nodeParent: Uint32Array;
  nodeFrame: Uint32Array;
  stackNode: Uint32Array;
  stackSite: Uint32Array;
  sites: PageSite[];
  devices: DeviceModel[];
  /** Number of the step at a time; null without steps. */
  stepAt(time_ns: number): number | null;
}

/** Totals by stack: index is the stack. */
export interface ByStack {
  bytes: Float64Array;
  count: Float64Array;
}

export interface DeviceModel {
  data: DeviceData;
  /** Decodes a column, once. */
  column(column: number): Float64Array;
  /** The edges at which the block table answers exactly, in nanoseconds, ascending. */
  edges(): Float64Array;
  /** Index of the edge nearest to a time. */
  nearestEdge(time_ns: number): number;
  /** Decodes the block table in steps. Queries decode what is missing. */
  decodeBlocks(): Iterable<void>;
  /** Blocks live at an edge. */
  liveAtEdge(edge: number): ByStack;
  /** Blocks allocated between two edges and still live at the second one. */
  keptBetween(from: number, to: number): ByStack;
  /** Blocks allocated between two edges and freed before the second one. */
  churnBetween(from: number, to: number): ByStack;
}
