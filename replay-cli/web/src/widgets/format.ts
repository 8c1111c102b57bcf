/** Numbers as the text report writes them. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** "0 B", "512 B", "1.00 KiB", "931.87 MiB"; "unknown" for null. */
export function formatBytes(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "unknown";
  const sign = bytes < 0 ? "-" : "";
  let value = Math.abs(bytes);
  let unit = 0;
  // 1023.996 would print as 1024.00.
  while (value >= (unit === 0 ? 1024 : 1023.995) && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${sign}${unit === 0 ? value : toFixed(value, 2)} ${UNITS[unit]}`;
}

/** Rounds ties to even, as Rust does. `toFixed` of JavaScript rounds them up. */
function toFixed(value: number, digits: 0 | 2): string {
  const tie = digits === 0 ? 0.5 : 0.125;
  return (value % (4 * tie) === tie ? value - tie / 100 : value).toFixed(digits);
}

/** With the exact number: "931.87 MiB (977,137,664 B)". */
export function exactBytes(bytes: number | null): string {
  return bytes === null ? "unknown" : `${formatBytes(bytes)} (${formatCount(bytes)} B)`;
}

/** With a sign, for differences: "+4.00 MiB". */
export function formatByteChange(bytes: number): string {
  return bytes > 0 ? `+${formatBytes(bytes)}` : formatBytes(bytes);
}

/** With thousands separators; "unknown" for null. */
export function formatCount(count: number | null | undefined): string {
  if (count === null || count === undefined) return "unknown";
  return Math.round(count).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

/** "1 block", "2,100 blocks". */
export function formatNumberOf(count: number | null | undefined, noun: string): string {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Only exact shares print as "0%" and "100%"; "unknown" if the whole is unknown or 0. */
export function formatShare(part: number, whole: number | null | undefined): string {
  if (!whole) return "unknown";
  const percent = (part / whole) * 100;
  if (percent > 0 && percent < 1) return "<1%";
  if (percent > 99 && percent < 100) return ">99%";
  return `${toFixed(percent, 0)}%`;
}

/** A duration or a moment: "81 ns", "1.13 s", "2 min 05 s", "3 h 07 min". */
export function formatTime(time_ns: number | null | undefined): string {
  if (time_ns === null || time_ns === undefined) return "unknown";
  if (time_ns < 0) return `-${formatTime(-time_ns)}`;
  if (time_ns < 1e3) return `${time_ns} ns`;
  if (time_ns < 999.5e3) return `${digits(time_ns / 1e3)} \u00b5s`;
  if (time_ns < 999.5e6) return `${digits(time_ns / 1e6)} ms`;
  const seconds = time_ns / 1e9;
  if (seconds < 99.95) return `${digits(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  const minutes = Math.round(seconds / 60);
  return `${formatCount(Math.floor(minutes / 60))} h ${pad(minutes % 60)} min`;
}

function digits(value: number): string {
  return value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : value.toFixed(0);
}

function pad(value: number): string {
  return value.toString().padStart(2, "0");
}
