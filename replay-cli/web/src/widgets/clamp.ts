/** The nearest number from `low` to `high`; `high` if they are in the wrong order. */
export function clamp(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), high);
}
