/** Shares as the text report writes them. */

import { formatShare } from "../widgets/format.js";

export function formatPercent(share: number): string {
  return formatShare(share, 1);
}

/** Share of a part; "unknown" if the whole is 0. */
export const percentOf = formatShare;
