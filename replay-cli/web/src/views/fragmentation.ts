/** Fragmentation: unused reserved memory over the run, at a moment, with other settings, and where. */

import { createAxis } from "../widgets/axis.js";
import { showCards } from "../widgets/card.js";
import { partColor } from "../widgets/colors.js";
import { fill, h, on } from "../widgets/dom.js";
import { describeExactMoment } from "../draw/moments.js";
import { plainTable, tableBehind } from "../draw/plain_table.js";
import { type Band, bandLegend, createStackedChart } from "../draw/stacked_chart.js";
import { formatBytes, formatNumberOf } from "../widgets/format.js";
import type { DeviceModel, TraceModel } from "../data/model.js";
import type { GapMoment } from "../data/page_data.js";
import { selectedDevice } from "../shell/selection.js";
import type { Context, View } from "../view.js";
import { withOptions } from "./options.js";
import { createMapCard, nearestKeyframe } from "./fragmentation/map_card.js";

export const fragmentationView: View = {
  id: "fragmentation",
  title: "Fragmentation",
  isAvailable: (model) => model.data.cards.some(({ gaps }) => gaps.length > 0)
    || model.traces.some((trace) => trace.devices.some(({ data }) =>
      data.gap !== null || data.keyframes.some((keyframe) => keyframe.segments !== null))),
  mount(root, context) {
    const history = createHistory(context);
    const moment = createMoment(context);
    const settings = createSettings(context);
    const map = createMapCard(context);
    const none = h("p", "card", "The trace has no events of PyTorch's allocator.");
    root.append(history.element, moment.element, settings.element, map.element, none);
    return {
      update() {
        const found = selectedDevice(context.model, context.selection());
        const moments = found ? momentsOf(context, found.trace, found.device) : [];
        const parts = found
          ? [
              history.update(found.trace, found.device, moments),
              moment.update(moments),
              settings.update(found.trace),
              map.update(found.trace, found.device, shownTime(context, moments)),
            ]
          : [];
        none.hidden = parts.some(Boolean);
      },
    };
  },
};

function momentsOf(context: Context, trace: TraceModel, device: DeviceModel): GapMoment[] {
  return context.model.data.cards[trace.index].gaps
    .filter((moment) => moment.device === device.data.ordinal);
}

/** The report's moment that is chosen, by option; the most telling one at first. */
function chosenMoment(context: Context, moments: GapMoment[]): GapMoment {
  const option = context.selection().options["gap.moment"];
  return moments[Number(option ?? NaN)] ?? moments.find(({ is_first }) => is_first) ?? moments[0];
}

/** The time that the map shows: the selected one, or that of the report's moment. */
function shownTime(context: Context, moments: GapMoment[]): number | null {
  const { from_ns } = context.selection();
  return from_ns ?? (moments.length > 0 ? chosenMoment(context, moments).time_ns : null);
}

function createHistory(context: Context) {
  let device: DeviceModel | null = null;
  // The map has fewer moments than the chart, so a click selects one that both have.
  const chart = createStackedChart(230, (time_ns) => {
    const keyframes = device?.data.keyframes ?? [];
    const nearest = keyframes.length > 0 ? nearestKeyframe(keyframes, time_ns).time_ns : time_ns;
    context.visit({ from_ns: nearest, to_ns: null });
  });
  const legend = h("div");
  const table = h("div");
  const element = h("div", "card",
    h("h2", {}, "Unused reserved memory over the run, by cause"), legend, chart.element, table);
  return {
    element,
    update(trace: TraceModel, newDevice: DeviceModel, moments: GapMoment[]): boolean {
      device = newDevice;
      const { gap, keyframes } = device.data;
      element.hidden = gap === null;
      if (!gap) return false;
      const times = device.column(gap.time_ns);
      const [reserved, live] = [device.column(gap.reserved), device.column(gap.live)];
      const { causes } = context.model.data.cards[trace.index];
      const order = Object.keys(causes);
      const bands: Band[] = gap.causes
        .filter(({ bytes }) => newDevice.column(bytes).some((each) => each > 0))
        .sort((a, b) => order.indexOf(b.cause) - order.indexOf(a.cause))
        .map(({ cause, bytes }) => ({
          label: causes[cause] ?? cause, color: partColor(cause), values: newDevice.column(bytes),
        }));
      // The map's moment is the chosen mark, so that chart and map show one moment.
      const shown = shownTime(context, moments);
      const of_map = keyframes.length > 0 ? nearestKeyframe(keyframes, shown).time_ns : shown;
      const others = moments.filter(({ time_ns }) => time_ns !== of_map);
      const most = device.column(gap.gap).reduce((a, b) => Math.max(a, b), 0);
      chart.element.hidden = bands.length === 0;
      fill(legend, bands.length === 0 ? "All reserved memory was in use." : bandLegend(bands));
      chart.show({
        axis: createAxis(trace, context.selection().axis),
        end_ns: trace.data.end_ns,
        times, bands,
        extra: (i) => [["reserved", formatBytes(reserved[i])], ["allocated", formatBytes(live[i])]],
        marks: [
          ...others.map(({ time_ns }) => ({ time_ns, isChosen: false })),
          ...(of_map === null ? [] : [{ time_ns: of_map, isChosen: true }]),
        ],
        sentence: `Unused reserved memory by cause, at ${formatNumberOf(times.length, "moment")}: `
          + `at most ${formatBytes(most)}. Arrow keys go through them.`,
      });
      const header = ["Moment", "Reserved", "Allocated", ...bands.map(({ label }) => label)];
      fill(table, tableBehind("Table", false, () => plainTable("Unused reserved memory", header,
        Array.from(times, (time, i) => [
          describeExactMoment(trace, time), formatBytes(reserved[i]), formatBytes(live[i]),
          ...bands.map(({ values }) => formatBytes(values[i])),
        ]))));
      return true;
    },
  };
}

function createMoment(context: Context) {
  const select = h("select", { "aria-label": "Moment" });
  let shown: GapMoment[] = [];
  on(select, "change", () =>
    context.visit({
      ...withOptions(context, { "gap.moment": select.value }),
      from_ns: shown[Number(select.value)]?.time_ns ?? null, to_ns: null,
    }));
  const body = h("div");
  const element = h("div", "card",
    h("div", "card-head", h("h2", {}, "Reserved memory at a moment"), select), body);
  return {
    element,
    update(moments: GapMoment[]): boolean {
      element.hidden = moments.length === 0;
      if (moments.length === 0) return false;
      shown = moments;
      const chosen = chosenMoment(context, moments);
      fill(select, ...moments.map((moment, i) =>
        h("option", { value: i, selected: moment === chosen }, moment.label)));
      select.value = String(moments.indexOf(chosen));
      showCards(body, [chosen.card], context);
      return true;
    },
  };
}

/** The report's predictions for other settings of PyTorch's allocator. */
function createSettings(context: Context) {
  const body = h("div");
  const element = h("div", "card", h("h2", {}, "Reserved memory with other settings"), body);
  return {
    element,
    update(trace: TraceModel): boolean {
      const { settings } = context.model.data.cards[trace.index].devices[context.selection().device];
      element.hidden = settings.length === 0;
      showCards(body, settings, context);
      return settings.length > 0;
    },
  };
}
