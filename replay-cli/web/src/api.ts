/**
 * `window.gpumemtrace`: the numbers of the page for scripts and tests.
 *
 * Moments snap to the nearest edge of the table of blocks, at which the answers are exact.
 */

import type { ByStack, Model } from "./data/model.js";
import { sumBySite } from "./shell/selection.js";

export interface PageApi {
  /** The report of `gpumemtrace replay --json`, parsed. */
  report(): object;
  /** Live bytes by `site.id` at the nearest edge; sites without bytes are left out. */
  liveAt(time_ns: number, trace?: number, device?: number): Record<string, number>;
  /** Bytes by `site.id` allocated between two edges and live at the second one. */
  keptBetween(
    from_ns: number,
    to_ns: number,
    trace?: number,
    device?: number,
  ): Record<string, number>;
  /** Times of the edges in nanoseconds, ascending. */
  edges(trace?: number, device?: number): number[];
}

export function createApi(model: Model): PageApi {
  const find = (trace: number, device: number) => {
    const found = model.traces[trace]?.devices[device];
    if (!found) throw new RangeError(`no device ${device} in trace ${trace}`);
    return { trace: model.traces[trace], device: found };
  };
  const bySite = (trace: number, totals: ByStack) => {
    const sums = sumBySite(model.traces[trace], totals);
    const result: Record<string, number> = {};
    model.traces[trace].sites.forEach((site, index) => {
      if (sums.count[index] > 0) result[site.id] = (result[site.id] ?? 0) + sums.bytes[index];
    });
    return result;
  };
  return {
    report: () => model.report,
    liveAt(time_ns, trace = 0, device = 0) {
      const found = find(trace, device).device;
      return bySite(trace, found.liveAtEdge(found.nearestEdge(time_ns)));
    },
    keptBetween(from_ns, to_ns, trace = 0, device = 0) {
      const found = find(trace, device).device;
      const edges = [found.nearestEdge(from_ns), found.nearestEdge(to_ns)];
      return bySite(trace, found.keptBetween(edges[0], edges[1]));
    },
    edges: (trace = 0, device = 0) => Array.from(find(trace, device).device.edges()),
  };
}
