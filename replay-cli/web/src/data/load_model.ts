/** Builds the model from the decoded blobs. Columns are decoded when they are first needed. */

import { BlockQueries, type BlockRows, firstAtLeast } from "./block_table.js";
import type { Columns } from "./decode.js";
import type { ByStack, DeviceModel, Model, Report, TraceModel } from "./model.js";
import type { DeviceData, PageData, TraceData } from "./page_data.js";

export function loadModel(data: PageData, columns: Columns, report: Report): Model {
  if (data.version !== 1) throw new Error(`unknown version ${String(data.version)} of the data`);
  const decoded = new Map<number, Float64Array>();
  const column = (number: number): Float64Array => {
    let values = decoded.get(number);
    if (!values) decoded.set(number, (values = columns.decode(number)));
    return values;
  };
  const traces = data.traces.map((trace, index) => new Trace(index, trace, columns, column));
  return { data, report, traces };
}

type GetColumn = (number: number) => Float64Array;

class Trace implements TraceModel {
  readonly frames;
  readonly sites;
  readonly devices: DeviceModel[];
  readonly stepStarts: Float64Array;
  #parents?: Uint32Array;
  #nodeFrames?: Uint32Array;
  #leafNodes?: Uint32Array;
  #sitesOfStacks?: Uint32Array;
  readonly #columns: Columns;

  constructor(
    readonly index: number,
    readonly data: TraceData,
    columns: Columns,
    column: GetColumn,
  ) {
    this.#columns = columns;
    this.frames = data.frames;
    this.sites = data.sites;
    this.stepStarts = data.steps ? column(data.steps.start_ns) : new Float64Array(0);
    this.devices = data.devices.map((device) => new Device(device, this, columns, column));
  }

  get nodeParent(): Uint32Array {
    return (this.#parents ??= this.#afterRoot(this.data.nodes.parent));
  }

  get nodeFrame(): Uint32Array {
    return (this.#nodeFrames ??= this.#afterRoot(this.data.nodes.frame));
  }

  get stackNode(): Uint32Array {
    return (this.#leafNodes ??= new Uint32Array(this.#columns.decode(this.data.stacks.node)));
  }

  get stackSite(): Uint32Array {
    return (this.#sitesOfStacks ??= new Uint32Array(this.#columns.decode(this.data.stacks.site)));
  }

  stepAt(time_ns: number): number | null {
    if (this.stepStarts.length === 0) return null;
    return firstAtLeast(this.stepStarts, Math.floor(time_ns) + 1);
  }

  /** The column holds nodes 1, 2, 3...; index 0 of the result is the root. */
  #afterRoot(column: number): Uint32Array {
    const values = this.#columns.decode(column);
    const nodes = new Uint32Array(values.length + 1);
    nodes.set(values, 1);
    return nodes;
  }
}

class Device implements DeviceModel {
  readonly #rows: Partial<BlockRows> = {};
  #queries?: BlockQueries;
  readonly #trace: Trace;
  readonly #columns: Columns;

  constructor(
    readonly data: DeviceData,
    trace: Trace,
    columns: Columns,
    readonly column: GetColumn,
  ) {
    this.#trace = trace;
    this.#columns = columns;
  }

  edges(): Float64Array {
    return this.column(this.data.blocks.edges_ns);
  }

  nearestEdge(time_ns: number): number {
    const edges = this.edges();
    const after = Math.min(firstAtLeast(edges, time_ns), edges.length - 1);
    const before = Math.max(after - 1, 0);
    return time_ns - edges[before] < edges[after] - time_ns ? before : after;
  }

  liveAtEdge(edge: number): ByStack {
    return this.#blockQueries().liveAt(edge);
  }

  keptBetween(from: number, to: number): ByStack {
    return this.#blockQueries().keptBetween(from, to);
  }

  churnBetween(from: number, to: number): ByStack {
    return this.#blockQueries().churnBetween(from, to);
  }

  *decodeBlocks(): Generator<void> {
    const rows = this.#rows;
    const columns = this.#columns;
    for (const name of ["birth", "death", "stack"] as const) {
      yield void (rows[name] ??= new Uint32Array(columns.decode(this.data.blocks[name])));
    }
    for (const name of ["bytes", "count"] as const) {
      yield void (rows[name] ??= columns.decode(this.data.blocks[name]));
    }
  }

  #blockQueries(): BlockQueries {
    if (!this.#queries) {
      for (const _ of this.decodeBlocks());
      this.#queries = new BlockQueries(this.#rows as BlockRows, this.#trace.stackSite.length);
    }
    return this.#queries;
  }
}
