/**
 * Live bytes of some call sites over the run.
 *
 * If all sites are among those of the bins, the curve has the instant of each bin's most live
 * bytes. Otherwise it is computed from the table of blocks at some of its edges, a few at a time,
 * so that the page stays responsive.
 */

import type { DeviceModel, TraceModel } from "../../data/model.js";

export interface Curve {
  times: number[];
  bytes: number[];
}

/** Edges that are computed for each curve, and how many at once. */
const EDGES = 96;
const EDGES_AT_ONCE = 8;

/** One request for each curve; all share the scans of the table. */
export class CurveLoader {
  readonly #waiting: { sites: Set<number>; curve: Curve; done: () => void }[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #trace: TraceModel;
  readonly #device: DeviceModel;

  constructor(
    trace: TraceModel,
    device: DeviceModel,
  ) {
    this.#trace = trace;
    this.#device = device;
  }

  /** Calls `done` when the curve is complete, perhaps at once. */
  load(sites: Set<number>, done: (curve: Curve) => void): void {
    const fromBins = this.#fromBins(sites);
    if (fromBins) {
      done(fromBins);
      return;
    }
    const curve: Curve = { times: [], bytes: [] };
    this.#waiting.push({ sites, curve, done: () => done(curve) });
    this.#timer ??= setTimeout(() => this.#scan(0), 0);
  }

  #fromBins(sites: Set<number>): Curve | null {
    const { bins } = this.#device.data;
    const columns = bins.sites.filter(({ site }) => sites.has(site));
    if (columns.length < sites.size) return null;
    const times = Array.from(this.#device.column(bins.time_ns));
    const values = columns.map(({ bytes }) => this.#device.column(bytes));
    const bytes = times.map((_, bin) => values.reduce((sum, column) => sum + column[bin], 0));
    return { times, bytes };
  }

  #scan(from: number): void {
    const edges = this.#device.edges();
    const last = edges.length - 1;
    const count = Math.min(EDGES, last);
    for (let i = from; i <= Math.min(from + EDGES_AT_ONCE - 1, count); i++) {
      const edge = Math.round((i / count) * last);
      const { bytes } = this.#device.liveAtEdge(edge);
      for (const { sites, curve } of this.#waiting) {
        let sum = 0;
        this.#trace.stackSite.forEach((site, stack) => {
          if (sites.has(site)) sum += bytes[stack];
        });
        curve.times.push(Math.max(0, edges[edge]));
        curve.bytes.push(sum);
      }
    }
    if (from + EDGES_AT_ONCE <= count) {
      setTimeout(() => this.#scan(from + EDGES_AT_ONCE), 0);
    } else {
      for (const { done } of this.#waiting.splice(0)) done();
      this.#timer = undefined;
    }
  }
}
