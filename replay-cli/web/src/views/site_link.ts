/** A call site of the report as a button, or as text if the page has no row of it. */

import type { TraceModel } from "../data/model.js";
import type { ReportSite } from "../data/report_types.js";
import { siteIndex } from "../shell/selection.js";
import { h } from "../widgets/dom.js";
import { siteLabel } from "../wording/sites.js";

export function siteLink(
  trace: TraceModel,
  site: ReportSite,
  pick: (siteId: string) => void,
): HTMLElement {
  const label = siteLabel(trace, site);
  if (siteIndex(trace, site.id) === null) return h("span", { class: "muted" }, label);
  return h("button", { class: "link", onclick: () => pick(site.id) }, label);
}
