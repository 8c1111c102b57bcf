// The data of one device for fixture.mjs, by a naive replay of its events.

const SERIES_BINS = 1024;
const TABLE_BINS = 512;

/** Blocks with births, deaths and stacks, in the order of their births. */
function readBlocks(events, device, averages) {
  const live = new Map();
  const blocks = [];
  const segments = [];
  const openSegments = new Map();
  let torchDevice = 0;
  const levels = [];
  let liveBytes = 0;
  let reserved = 0;
  for (const event of events) {
    if (event.device !== device) continue;
    if (event.kind === "block_alloc") {
      const block = { ...event, birth: event.time, death: Infinity, stack: 0 };
      block.stack = pickStack(block, averages);
      live.set(event.addr, block);
      blocks.push(block);
      liveBytes += event.size;
    } else if (event.kind === "block_free" && live.has(event.addr)) {
      live.get(event.addr).death = event.time;
      liveBytes -= live.get(event.addr).size;
      live.delete(event.addr);
    } else if (event.kind === "segment_alloc") {
      const segment = { ...event, birth: event.time, death: Infinity };
      openSegments.set(event.addr, segment);
      segments.push(segment);
      reserved += event.size;
    } else if (event.kind === "segment_free" && openSegments.has(event.addr)) {
      openSegments.get(event.addr).death = event.time;
      reserved -= openSegments.get(event.addr).size;
      openSegments.delete(event.addr);
    } else if (event.kind === "device_alloc") {
      torchDevice += event.size;
    } else if (event.kind === "device_free") {
      torchDevice -= event.size;
    } else continue;
    levels.push({ time: event.time, live: liveBytes, reserved, device: torchDevice });
  }
  return { blocks, segments, levels };
}

/** A stack whose blocks have about this size at the peak; among similar ones, by depth. */
function pickStack(block, averages) {
  const similar = averages
    .map((average, index) => ({ index, error: Math.abs(Math.log(average / block.size)) }))
    .sort((a, b) => a.error - b.error)
    .slice(0, 3);
  return similar.length ? similar[block.depth % similar.length].index : 0;
}

function range(length, value) {
  return Array.from({ length }, (_, index) => value(index));
}

export function buildDevice({ device, report, events, averages, starts, columns }) {
  const { blocks, segments, levels } = readBlocks(events, device.device, averages);
  const end = Math.max(report.traces[0].duration_ns, levels.at(-1)?.time ?? 0) + 1;
  const width = Math.ceil(end / SERIES_BINS);
  const series = {};
  const peakOfBin = range(SERIES_BINS, () => ({ live: 0, time: 0 }));
  for (const name of ["live", "reserved", "device"]) {
    let next = 0;
    let value = 0;
    const low = [];
    const high = [];
    for (let bin = 0; bin < SERIES_BINS; bin++) {
      let least = value;
      let most = value;
      if (name === "live") peakOfBin[bin] = { live: value, time: bin * width };
      for (; next < levels.length && levels[next].time < (bin + 1) * width; next++) {
        value = levels[next][name];
        least = Math.min(least, value);
        most = Math.max(most, value);
        if (name === "live" && value > peakOfBin[bin].live) {
          peakOfBin[bin] = { live: value, time: levels[next].time };
        }
      }
      low.push(least);
      high.push(most);
    }
    series[`${name}_min`] = columns.add(low);
    series[`${name}_max`] = columns.add(high);
  }
  const bySite = range(averages.length, () => range(SERIES_BINS, () => 0));
  for (const block of blocks) {
    for (let bin = Math.floor(block.birth / width); bin < SERIES_BINS; bin++) {
      if (peakOfBin[bin].time >= block.death) break;
      if (peakOfBin[bin].time >= block.birth) bySite[block.stack][bin] += block.size;
    }
  }
  const ranked = bySite.map((bytes, site) => ({ site, bytes, most: Math.max(...bytes) }))
    .sort((a, b) => b.most - a.most);
  const shown = ranked.slice(0, Math.max(1, Math.min(32, ranked.length - 2)));
  const others = range(SERIES_BINS, (bin) =>
    peakOfBin[bin].live - shown.reduce((sum, each) => sum + each.bytes[bin], 0));
  const summary = {
    ordinal: device.device,
    name: device.name,
    total_bytes: device.total_bytes,
    layer: "torch",
    series: { start_ns: 0, width_ns: width, ...series },
    bins: {
      start_ns: 0,
      width_ns: width,
      time_ns: columns.add(peakOfBin.map((bin) => bin.time)),
      live: columns.add(peakOfBin.map((bin) => bin.live)),
      sites: shown.map(({ site, bytes }) => ({ site, bytes: columns.add(bytes) })),
      others: columns.add(others),
      other_sites: ranked.length - shown.length,
    },
    blocks: buildTable(blocks, end, columns),
    gap: buildGap(report, device, columns),
    keyframes: buildKeyframes({ blocks, segments, levels, report, device, starts, end, columns }),
  };
  rewritePeak(report, device, blocks);
  return summary;
}

function buildTable(blocks, end, columns) {
  const width = Math.ceil(end / TABLE_BINS);
  const rows = new Map();
  for (const { birth, death, stack, size } of blocks) {
    const born = Math.floor(birth / width);
    const died = death === Infinity ? TABLE_BINS : Math.floor(death / width);
    const key = `${born}/${died}/${stack}`;
    const row = rows.get(key) ?? { born, died, stack, bytes: 0, count: 0 };
    row.bytes += size;
    row.count++;
    rows.set(key, row);
  }
  const sorted = [...rows.values()]
    .sort((a, b) => a.born - b.born || a.died - b.died || a.stack - b.stack);
  const column = (name) => columns.add(sorted.map((row) => row[name]));
  return {
    start_ns: 0,
    width_ns: width,
    bins: TABLE_BINS,
    birth: column("born"),
    death: column("died"),
    stack: column("stack"),
    bytes: column("bytes"),
    count: column("count"),
  };
}

function buildGap(report, device, columns) {
  const found = (report.fragmentation_over_time ?? [])
    .find((each) => each.trace === 0 && each.device === device.device);
  if (!found) return null;
  const causes = [...new Set(found.points.flatMap((point) => Object.keys(point.causes)))];
  const column = (value) => columns.add(found.points.map(value));
  return {
    time_ns: column((point) => point.time_ns),
    reserved: column((point) => point.reserved_bytes),
    live: column((point) => point.live_bytes),
    gap: column((point) => point.gap_bytes),
    causes: causes.map((cause) => ({ cause, bytes: column((point) => point.causes[cause] ?? 0) })),
  };
}

function buildKeyframes({ blocks, segments, levels, report, device, starts, end, columns }) {
  const gap = (report.fragmentation ?? []).filter((each) => each.device === device.device);
  const wanted = [
    { why: "peak", time: device.peak.time_ns },
    ...gap.filter((each) => ["peak_reserved", "largest_gap"].includes(each.at.why))
      .map((each) => ({ why: each.at.why, time: each.at.time_ns })),
    { why: "end", time: device.end.time_ns },
    ...range(16, (index) => ({ why: "interval", time: Math.round(((index + 1) * end) / 17) })),
  ].sort((a, b) => a.time - b.time);
  return wanted.map(({ why, time }) => {
    const isLive = (each) => each.birth <= time && each.death > time;
    const byAddress = (a, b) => a.addr - b.addr;
    const live = blocks.filter(isLive).sort(byAddress);
    const open = segments.filter(isLive).sort(byAddress);
    const level = levels.findLast((each) => each.time <= time) ?? { live: 0, reserved: 0 };
    return {
      time_ns: time,
      step: starts.length ? starts.filter((start) => start <= time).length : null,
      why,
      live_bytes: level.live,
      reserved_bytes: level.reserved,
      segments: {
        addr: columns.add(open.map((each) => each.addr)),
        bytes: columns.add(open.map((each) => each.size)),
        stream: columns.add(open.map((each) => each.stream)),
        pool: columns.add(open.map(() => 0)),
        is_expandable: columns.add(open.map(() => 0)),
      },
      blocks: {
        addr: columns.add(live.map((each) => each.addr)),
        bytes: columns.add(live.map((each) => each.size)),
        stack: columns.add(live.map((each) => each.stack)),
      },
    };
  });
}

/** Makes the sites of the report's peak those of the made-up stacks. */
function rewritePeak(report, device, blocks) {
  const peak = (report.peak ?? []).find((each) => each.device === device.device);
  if (!peak) return;
  const sums = peak.sites.map(() => ({ bytes: 0, blocks: 0 }));
  for (const block of blocks) {
    if (block.birth > peak.time_ns || block.death <= peak.time_ns) continue;
    sums[block.stack].bytes += block.size;
    sums[block.stack].blocks++;
  }
  peak.sites = peak.sites
    .map((entry, index) => ({ ...entry, ...sums[index] }))
    .filter((entry) => entry.bytes > 0)
    .sort((a, b) => b.bytes - a.bytes);
}
