/** All views, in the order of their tabs. */

import type { View } from "../view.js";
import { flameView } from "./flame.js";
import { fragmentationView } from "./fragmentation.js";
import { leaksView } from "./leaks.js";
import { oomView } from "./oom.js";
import { overviewView } from "./overview.js";
import { ranksView } from "./ranks.js";
import { runView } from "./run.js";
import { sitesView } from "./sites.js";
import { timelineView } from "./timeline.js";

export const VIEWS: View[] = [
  overviewView,
  timelineView,
  flameView,
  leaksView,
  fragmentationView,
  oomView,
  sitesView,
  ranksView,
  runView,
];
