/**
 * The numbers behind the timeline: live bytes by site, category, stream or pool at the instant of
 * each bin's maximum, and the least and most bytes of each bin.
 *
 * A column of pixels covers one or more bins. It shows the bin with the most live bytes, never the
 * maxima of different instants on top of each other.
 */

import { categoryColor, GREY, HUES } from "../../widgets/colors.js";
import { formatNumberOf } from "../../widgets/format.js";
import { binsBetween, byteTime } from "../../data/bins.js";
import { shortLabel } from "../../shell/selection.js";
import type { DeviceModel, TraceModel } from "../../data/model.js";
import type { GroupKind, Series } from "../../data/page_data.js";
import type { Axis } from "../../widgets/axis.js";

export type Stacking = "site" | GroupKind;

/** One colour of the stack, from the bottom to the top. */
export interface Band {
  label: string;
  /** The label with the whole path of the file. */
  title: string;
  /** Index in `trace.sites`; null for the other sites and other groups. */
  site: number | null;
  color: string;
  /** Bytes at the instant of the most live bytes of each bin. */
  values: Float64Array;
  /** The largest of `values`. */
  most: number;
}

export interface ChartData {
  bands: Band[];
  /** Begins of the bins, and the end of the last. */
  edges: Float64Array;
  bins: number;
  /** The instant of each bin's most live bytes, and these bytes. */
  time_ns: Float64Array;
  live: Float64Array;
  levels: Levels;
  /** End of the shown time; the begin is 0. */
  end_ns: number;
}

export interface Levels {
  edges: Float64Array;
  live_min: Float64Array;
  live_max: Float64Array;
  reserved_min: Float64Array;
  reserved_max: Float64Array;
  device_min: Float64Array;
  device_max: Float64Array;
}

export function createChartData(
  trace: TraceModel,
  device: DeviceModel,
  stacking: Stacking,
  color: (site: number | null) => string,
): ChartData {
  const { bins } = device.data;
  const live = device.column(bins.live);
  const shown = groupBands(device, stacking) ?? siteBands(trace, device, color);
  return {
    bands: shown.filter((band) => band.most > 0),
    edges: device.column(bins.edges_ns),
    bins: live.length,
    time_ns: device.column(bins.time_ns),
    live,
    levels: readLevels(device),
    end_ns: Math.max(trace.data.end_ns, 1),
  };
}

function readLevels(device: DeviceModel): Levels {
  const { series } = device.data;
  const read = (key: keyof Series) => device.column(series[key]);
  return {
    edges: read("edges_ns"),
    live_min: read("live_min"),
    live_max: read("live_max"),
    reserved_min: read("reserved_min"),
    reserved_max: read("reserved_max"),
    device_min: read("device_min"),
    device_max: read("device_max"),
  };
}

function siteBands(
  trace: TraceModel,
  device: DeviceModel,
  color: (site: number | null) => string,
): Band[] {
  const { bins } = device.data;
  const bands = bins.sites.map(({ site, bytes }): Band => {
    const values = device.column(bytes);
    return {
      label: shortLabel(trace.sites[site]),
      title: trace.sites[site].label,
      site,
      color: color(site),
      values,
      most: largest(values),
    };
  });
  const others = device.column(bins.others);
  const label = formatNumberOf(bins.other_sites, "other call site");
  const most = largest(others);
  bands.push({ label, title: label, site: null, color: GREY, values: others, most });
  return bands;
}

/** The groups, most bytes over time first; undefined if the trace does not divide memory so. */
function groupBands(device: DeviceModel, stacking: Stacking): Band[] | undefined {
  const found = device.data.bins.groups.find(({ by }) => by === stacking);
  const edges = device.column(device.data.bins.edges_ns);
  const bands = found?.groups.map(({ name, bytes }) => {
    const values = device.column(bytes);
    return { label: name, title: name, site: null, color: GREY, values, most: largest(values) };
  }).sort((a, b) => byteTime(edges, b.values) - byteTime(edges, a.values));
  bands?.forEach((band, index) => {
    const isKnown = band.label !== "unknown" && index < HUES.length;
    if (stacking === "category") band.color = categoryColor(band.label);
    else if (isKnown) band.color = HUES[index];
  });
  return bands;
}

export function largest(values: ArrayLike<number>): number {
  let most = 0;
  for (let i = 0; i < values.length; i++) if (values[i] > most) most = values[i];
  return most;
}

/** A part of the axis that is drawn over `width` columns of pixels. */
export interface Range {
  from: number;
  to: number;
}

/** What each column of pixels shows. */
export interface PixelColumns {
  /** The bin with the most live bytes; -1 outside of the recording. */
  bin: Int32Array;
  live_min: Float64Array;
  live_max: Float64Array;
  reserved_max: Float64Array;
  device_max: Float64Array;
}

export function columnsOf(data: ChartData, axis: Axis, range: Range, width: number): PixelColumns {
  const columns: PixelColumns = {
    bin: new Int32Array(width).fill(-1),
    live_min: new Float64Array(width),
    live_max: new Float64Array(width),
    reserved_max: new Float64Array(width),
    device_max: new Float64Array(width),
  };
  const step = (range.to - range.from) / width;
  let begin = axis.time(range.from);
  for (let x = 0; x < width; x++) {
    const end = axis.time(range.from + (x + 1) * step);
    if (end > 0 && begin < data.end_ns) {
      columns.bin[x] = highestBin(data, begin, end);
      const level = levelsBetween(data.levels, begin, end);
      columns.live_min[x] = level.live_min;
      columns.live_max[x] = level.live_max;
      columns.reserved_max[x] = level.reserved_max;
      columns.device_max[x] = level.device_max;
    }
    begin = end;
  }
  return columns;
}

/** The bin with the most live bytes of those that a span of time touches. */
export function highestBin(data: ChartData, begin_ns: number, end_ns: number): number {
  const [first, last] = binsBetween(data.edges, begin_ns, end_ns);
  let highest = first;
  for (let bin = first + 1; bin <= last; bin++) {
    if (data.live[bin] > data.live[highest]) highest = bin;
  }
  return highest;
}

export interface LevelRange {
  /** From the begin of the first bin to the end of the last. */
  span_ns: number;
  live_min: number;
  live_max: number;
  reserved_min: number;
  reserved_max: number;
  device_min: number;
  device_max: number;
}

/** Least and most bytes of the bins that a span of time touches. */
export function levelsBetween(levels: Levels, begin_ns: number, end_ns: number): LevelRange {
  const [first, last] = binsBetween(levels.edges, begin_ns, end_ns);
  const range: LevelRange = {
    span_ns: levels.edges[last + 1] - levels.edges[first],
    live_min: Infinity,
    live_max: 0,
    reserved_min: Infinity,
    reserved_max: 0,
    device_min: Infinity,
    device_max: 0,
  };
  for (let bin = first; bin <= last; bin++) {
    range.live_min = Math.min(range.live_min, levels.live_min[bin]);
    range.live_max = Math.max(range.live_max, levels.live_max[bin]);
    range.reserved_min = Math.min(range.reserved_min, levels.reserved_min[bin]);
    range.reserved_max = Math.max(range.reserved_max, levels.reserved_max[bin]);
    range.device_min = Math.min(range.device_min, levels.device_min[bin]);
    range.device_max = Math.max(range.device_max, levels.device_max[bin]);
  }
  return range;
}
