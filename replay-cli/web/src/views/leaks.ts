/** Leaks: whether they could be judged, a card for each, and growth that is not known to leak. */

import { createAxis } from "../widgets/axis.js";
import type { ChartPlace } from "../widgets/card.js";
import { fill } from "../widgets/dom.js";
import { formatBytes } from "../widgets/format.js";
import { createStackedChart } from "../draw/stacked_chart.js";
import type { Context } from "../view.js";
import { cardView, type UpdateChart } from "./cards.js";
import { type Curve, CurveLoader } from "./leaks/curve.js";

const CURVE_HEIGHT = 176;

/** The live bytes of some call sites over the run, as the command asks for them. */
interface LeakChart {
  device: number;
  sites: number[];
  /** The site that gives the colour. */
  color: number;
  caption: string;
}

export const leaksView = cardView("leaks", "Leaks", (places, trace, context) => {
  const loaders = new Map<number, CurveLoader>();
  return places.map((place) => drawCurve(place, trace, context, loaders));
});

function drawCurve(
  place: ChartPlace,
  trace: number,
  context: Context,
  loaders: Map<number, CurveLoader>,
): UpdateChart {
  const { device, sites, color, caption } = place.chart as LeakChart;
  const model = context.model.traces[trace];
  const loader = loaders.get(device) ?? new CurveLoader(model, model.devices[device]);
  loaders.set(device, loader);
  const chart = createStackedChart(CURVE_HEIGHT, (time_ns) =>
    context.open("flame", { trace, from_ns: time_ns, to_ns: null }));
  let curve: Curve | null = null;
  const update = (): void => {
    if (!curve) return;
    const { times, bytes } = curve;
    chart.show({
      axis: createAxis(model, context.selection().axis),
      end_ns: model.data.end_ns,
      times,
      bands: [{ label: "live", color: context.color(color), values: bytes }],
      extra: () => [],
      marks: [],
      sentence: `${caption}: from ${formatBytes(bytes[0])} to ${formatBytes(bytes.at(-1))}`,
    });
  };
  loader.load(new Set(sites), (loaded) => {
    curve = loaded;
    fill(place.element, chart.element);
    update();
  });
  return update;
}
