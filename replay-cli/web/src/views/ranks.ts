/** Ranks side by side: the allocated memory of each on one scale, peaks, and the first cause. */

import { binsBetween } from "../data/bins.js";
import { fitSurface, createSurface, type Surface } from "../widgets/canvas.js";
import { showCards } from "../widgets/card.js";
import type { DeviceModel, TraceModel } from "../data/model.js";
import { themeColor } from "../shell/theme.js";
import type { View } from "../view.js";
import { largest } from "./timeline/chart_data.js";

const SPARK_HEIGHT = 34;

/** The curve of a rank, as the command asks for it. */
interface RankChart {
  trace: number;
  device: number;
  label: string;
}

interface Spark {
  surface: Surface;
  trace: TraceModel;
  device: DeviceModel;
}

export const ranksView: View = {
  id: "ranks",
  title: "Ranks",
  isAvailable: (model) => model.data.rank_cards.length > 0,
  mount(root, context) {
    const { data, traces } = context.model;
    const sparks = showCards(root, data.rank_cards, context).map(({ element, chart }): Spark => {
      const { trace, device, label } = chart as RankChart;
      const surface = createSurface(element, label);
      return { surface, trace: traces[trace], device: traces[trace].devices[device] };
    });
    const scale = Math.max(1, ...sparks.map(({ device }) =>
      largest(device.column(device.data.series.live_max))));
    const end = Math.max(1, ...sparks.map(({ trace }) => trace.data.end_ns));
    return { update: () => sparks.forEach((spark) => drawSpark(spark, scale, end)) };
  },
};

/** Least and most live bytes of each column of pixels. */
function drawSpark({ surface, trace, device }: Spark, scale: number, end: number): void {
  fitSurface(surface, SPARK_HEIGHT);
  const { context, width, height } = surface;
  const { series } = device.data;
  const edges = device.column(series.edges_ns);
  const least = device.column(series.live_min);
  const most = device.column(series.live_max);
  const shown = Math.min(width, Math.ceil((trace.data.end_ns / end) * width));
  context.fillStyle = themeColor("accent");
  for (let x = 0; x < shown; x++) {
    const [first, last] = binsBetween(edges, (x / width) * end, ((x + 1) / width) * end);
    let low = Infinity;
    let high = 0;
    for (let bin = first; bin <= last; bin++) {
      low = Math.min(low, least[bin]);
      high = Math.max(high, most[bin]);
    }
    const top = (high / scale) * (height - 2);
    const floor = (low / scale) * (height - 2);
    context.globalAlpha = 0.45;
    context.fillRect(x, height - top, 1, top - floor);
    context.globalAlpha = 1;
    context.fillRect(x, height - floor, 1, floor);
  }
}
