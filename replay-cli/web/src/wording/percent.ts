/** Shares as the text report writes them. */

/** Only exact shares print as `0%` and `100%`. */
export function formatPercent(share: number): string {
  const percent = share * 100;
  if (percent > 0 && percent < 1) return "<1%";
  if (percent > 99 && percent < 100) return ">99%";
  return `${percent.toFixed(0)}%`;
}

/** Share of a part; "unknown" if the whole is 0. */
export function percentOf(part: number, whole: number): string {
  return whole > 0 ? formatPercent(part / whole) : "unknown";
}
