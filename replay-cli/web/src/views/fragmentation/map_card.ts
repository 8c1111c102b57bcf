/** The card of the segment map: the moment, the colours, and what is known of a picked block. */

import { press, segmented } from "../../widgets/segmented.js";
import { makeNode } from "../../widgets/card.js";
import { type Child, fill, h, on, swatch } from "../../widgets/dom.js";
import { describeExactMoment } from "../../draw/moments.js";
import { plainTable, tableBehind } from "../../draw/plain_table.js";
import { facts } from "../../draw/tooltip.js";
import { formatBytes, formatCount, formatNumberOf, formatShare } from "../../widgets/format.js";
import type { DeviceModel, TraceModel } from "../../data/model.js";
import type { Keyframe, PageSite } from "../../data/page_data.js";
import { siteIndex } from "../../shell/selection.js";
import type { Context } from "../../view.js";
import { withOptions } from "../options.js";
import { siteLink } from "../site_link.js";
import { stackOfNode } from "../stack_list.js";
import { createSegmentMap, hex, pieceFacts, poolColors, poolKey } from "./segment_map.js";
import { type Piece, readSegments, type Segment } from "./segments.js";

const WHY: Record<string, string> = {
  peak: "peak of allocated memory",
  peak_reserved: "peak of reserved memory",
  largest_gap: "most unused reserved memory",
  end: "end of the program",
  oom: "out-of-memory error",
  mark: "mark of the program",
  interval: "regular interval",
};

/** Names of keyframes with a button of their own. */
const NAMED: [string, string][] = [
  ["peak", "Peak"], ["peak_reserved", "Peak reserved"], ["largest_gap", "Largest gap"],
  ["end", "End"],
];

export function createMapCard(context: Context) {
  const slider = h("input", { type: "range", min: 0, step: 1, "aria-label": "Moment of the map" });
  const buttons = segmented("Moment");
  const colors = segmented("Colours");
  const caption = h("p", "map-caption");
  const legend = h("div");
  const panel = h("div", "flame-panel");
  const table = h("div");
  let picked: { segment: Segment; piece: Piece } | null = null;
  let shown: { keyframe: Keyframe; segments: Segment[] | null } | null = null;
  const map = createSegmentMap((segment, piece) => {
    picked = { segment, piece };
    showPanel();
  });
  const element = h("div", "card",
    h("h2", {}, "Segments and blocks by address"),
    h("div", "toolbar", buttons, slider, colors),
    caption, legend, map.element, panel, table);
  let trace!: TraceModel;
  let device!: DeviceModel;

  const go = (keyframe: Keyframe | undefined): void => {
    if (keyframe) context.visit({ from_ns: keyframe.time_ns, to_ns: null });
  };
  on(slider, "input", () => go(device.data.keyframes[Number(slider.value)]));

  /** The flame graph shows the moment of the map. */
  const linkOf = ({ id, label }: PageSite): HTMLElement =>
    siteLink(context, id, label, { from_ns: shown!.keyframe.time_ns, to_ns: null });

  function showPanel(): void {
    panel.hidden = picked === null;
    if (!picked) return;
    const { segment, piece } = picked;
    const site = piece.kind === "block" ? trace.sites[trace.stackSite[piece.stack]] : null;
    const stack = piece.kind === "block" ? stackOfNode(trace, trace.stackNode[piece.stack]) : null;
    const select = site && h("button", {}, "Select this call site");
    select?.addEventListener("click", () => context.visit({ site: site!.id }));
    const name = site ? linkOf(site) : piece.kind === "free" ? "Free" : "Not mapped";
    fill(panel,
      h("h3", {}, name),
      site?.source && h("pre", "source", site.source),
      facts(pieceFacts(segment, piece)),
      stack && makeNode(stack, context),
      select);
  }

  return {
    element,
    update(newTrace: TraceModel, newDevice: DeviceModel, time_ns: number | null): boolean {
      [trace, device] = [newTrace, newDevice];
      const { keyframes } = device.data;
      element.hidden = keyframes.length === 0;
      if (keyframes.length === 0) return false;
      const keyframe = nearestKeyframe(keyframes, time_ns);
      if (shown?.keyframe !== keyframe) {
        shown = { keyframe, segments: readSegments(device, keyframe) };
        picked = null;
      }
      slider.max = String(keyframes.length - 1);
      slider.value = String(keyframes.indexOf(keyframe));
      fill(buttons, ...NAMED.map(([why, text]) => {
        const target = keyframes.find((each) => each.why === why);
        return target && pressedButton(text, target === keyframe, () => go(target));
      }));
      const colorBy = context.selection().options["gap.color"] === "pool" ? "pool" : "site";
      fill(colors, ...(["site", "pool"] as const).map((key) =>
        pressedButton(key === "site" ? "Call sites" : "Streams, pools", key === colorBy, () =>
          context.select(withOptions(context, { "gap.color": key })))));
      const moment = describeExactMoment(trace, keyframe.time_ns);
      slider.setAttribute("aria-valuetext", moment);
      const { segments } = shown;
      const text = segments
        ? describeMap(keyframe, segments)
        : `${formatNumberOf(device.column(keyframe.blocks.addr).length, "block")}, `
          + `${formatBytes(keyframe.live_bytes)}; the segments are unknown.`;
      fill(caption, h("strong", {}, `${moment}: ${WHY[keyframe.why] ?? keyframe.why}. `), text);
      map.element.hidden = !segments;
      legend.hidden = !segments;
      if (segments) {
        fill(legend, mapLegend(segments, colorBy, keyframe));
        map.show({
          segments, colorBy,
          siteOf: (stack) => trace.stackSite[stack],
          siteLabel: (site) => trace.sites[site].label,
          siteColor: (site) => context.color(site),
          selectedSite: siteIndex(trace, context.selection().site),
          sentence: `Segments at ${moment}: ${text} Arrow keys go through the blocks.`,
        });
        fill(table, tableBehind("Table of segments", false, () => segmentTable(segments)));
      }
      showPanel();
      return true;
    },
  };

  function mapLegend(segments: Segment[], colorBy: string, keyframe: Keyframe): HTMLElement {
    const items: Child[] = [];
    const add = (color: string, ...label: Child[]): void => {
      items.push(h("li", {}, swatch(color), ...label));
    };
    if (colorBy === "pool") {
      for (const [key, color] of poolColors(segments)) add(color, key);
    } else {
      const sums = new Map<number, number>();
      const bytes = device.column(keyframe.blocks.bytes);
      device.column(keyframe.blocks.stack).forEach((stack, i) => {
        const site = trace.stackSite[stack];
        sums.set(site, (sums.get(site) ?? 0) + bytes[i]);
      });
      const ranked = [...sums].sort((a, b) => b[1] - a[1]);
      for (const [site, sum] of ranked.slice(0, 8)) {
        add(context.color(site), linkOf(trace.sites[site]), ` ${formatBytes(sum)}`);
      }
      const rest = ranked.slice(8);
      if (rest.length > 0) {
        items.push(h("li", "muted", formatNumberOf(rest.length, "other call site")));
      }
    }
    items.push(h("li", {}, h("span", "swatch hatched"), "free"));
    return h("ul", "band-legend", ...items);
  }
}

function pressedButton(text: string, isPressed: boolean, onclick: () => void): HTMLElement {
  const button = h("button", { onclick }, text);
  press(button, isPressed);
  return button;
}

/** The state nearest to a time; without one, that of the most unused memory. */
export function nearestKeyframe(keyframes: Keyframe[], time_ns: number | null): Keyframe {
  if (time_ns === null) {
    return keyframes.find(({ why }) => why === "largest_gap")
      ?? keyframes.find(({ why }) => why === "peak") ?? keyframes[0];
  }
  return keyframes.reduce((best, each) =>
    Math.abs(each.time_ns - time_ns) < Math.abs(best.time_ns - time_ns) ? each : best);
}

function describeMap(keyframe: Keyframe, segments: Segment[]): string {
  const free = keyframe.reserved_bytes - keyframe.live_bytes;
  const blocks = segments.reduce((sum, segment) => sum + segment.blocks, 0);
  const largest = segments.reduce((most, segment) => Math.max(most, segment.largestFree), 0);
  const expandable = segments.filter((segment) => segment.isExpandable).length;
  return `${formatNumberOf(segments.length, "segment")}`
    + (expandable > 0 ? ` (${formatCount(expandable)} expandable, drawn with dashed borders)` : "")
    + `, ${formatBytes(keyframe.reserved_bytes)} reserved, ${formatBytes(keyframe.live_bytes)} `
    + `allocated in ${formatNumberOf(blocks, "block")}; ${formatBytes(free)} unused `
    + `(${formatShare(free, keyframe.reserved_bytes)}), largest free range `
    + `${formatBytes(largest)}.`;
}

function segmentTable(segments: Segment[]): HTMLElement {
  const header = ["Address", "Size", "Allocated", "Largest free", "Blocks", "Mapped ranges", "For"];
  return plainTable("Segments", header, segments.map((segment) => [
    hex(segment.addr), formatBytes(segment.bytes), formatBytes(segment.allocated),
    formatBytes(segment.largestFree), formatCount(segment.blocks),
    segment.isExpandable ? formatCount(segment.ranges) : "-", poolKey(segment),
  ]));
}
