/** The rows of the map of ranks: their order, and what a cell shows. */

import { formatBytes, formatCount, formatTime } from "../widgets/format.js";
import type { RankData } from "./page_data.js";

/** Canvases have a limit on their height; more ranks share a row. */
const MAX_ROWS = 4000;

/** The rows of the map: most bytes of the ranks in each, in each part. */
export interface HeatRow {
  ranks: RankData[];
  live_bytes: (number | null)[];
}

export const ORDERS = {
  rank: { title: "rank", compare: compareRanks },
  peak: {
    title: "highest peak",
    compare: (a: RankData, b: RankData) => (b.peak_live_bytes ?? -1) - (a.peak_live_bytes ?? -1),
  },
  host: {
    title: "host",
    compare: (a: RankData, b: RankData) => compareText(a.host ?? "", b.host ?? "") || compareRanks(a, b),
  },
};

export type Order = keyof typeof ORDERS;

function compareText(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

function compareRanks(a: RankData, b: RankData): number {
  return (a.rank ?? Infinity) - (b.rank ?? Infinity) || compareText(a.name, b.name);
}

/** One row for each rank, or for several if there are very many. */
export function mergeRows(ranks: RankData[], limit = MAX_ROWS): HeatRow[] {
  const together = Math.max(1, Math.ceil(ranks.length / limit));
  const rows: HeatRow[] = [];
  for (let first = 0; first < ranks.length; first += together) {
    const group = ranks.slice(first, first + together);
    const parts = Math.max(...group.map((rank) => rank.live_bytes.length));
    const live_bytes = Array.from({ length: parts }, (_, part) => group.reduce<number | null>(
      (most, rank) => {
        const bytes = rank.live_bytes[part] ?? null;
        return bytes === null ? most : Math.max(most ?? 0, bytes);
      }, null));
    rows.push({ ranks: group, live_bytes });
  }
  return rows;
}

/** What a cell shows, as rows of a name and a value. */
export function cellFacts(row: HeatRow, part: number): [string, string][] {
  const [first] = row.ranks;
  const last = row.ranks[row.ranks.length - 1];
  const parts = row.live_bytes.length;
  const name = row.ranks.length === 1 ? first.name : `${first.name} to ${last.name}`;
  const rows: [string, string][] = [["", name], ["allocated", formatBytes(row.live_bytes[part])]];
  if (row.ranks.length > 1) return rows;
  const { duration_ns, host, peak_live_bytes, total_bytes, steps } = first;
  const from = duration_ns === null ? null : (duration_ns * part) / parts;
  const to = duration_ns === null ? null : (duration_ns * (part + 1)) / parts;
  rows.push(["time", `${formatTime(from)} to ${formatTime(to)}`]);
  rows.push(["peak", formatBytes(peak_live_bytes)], ["GPU", formatBytes(total_bytes)]);
  rows.push(["steps", formatCount(steps)], ["host", host ?? "unknown"]);
  return rows;
}
