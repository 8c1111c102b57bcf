/** The bar of a GPU's memory when the driver had handed out most, with exact numbers. */

import { CAUSE_COLORS, CAUSE_LABELS, GREY, HUES } from "../../widgets/colors.js";
import { fill, h, swatch } from "../../widgets/dom.js";
import { exactBytes, splitDevice, type DevicePart } from "../../findings.js";
import { formatBytes, formatCount, formatShare } from "../../widgets/format.js";
import type { Report } from "../../data/model.js";

/** With more than this share of the GPU free, a second bar shows the rest enlarged. */
const ENLARGED_BELOW = 0.3;

export function drawDeviceBar(parent: HTMLElement, report: Report, device: Report): void {
  const parts = splitDevice(report, device);
  const title = h("h2", {}, `Memory of GPU ${device.device} at the peak of the driver`);
  if (!parts) {
    const text = "unknown: the trace has no calls of the driver.";
    fill(parent, title, h("p", { class: "muted" }, text));
    return;
  }
  const total = device.total_bytes ?? parts.reduce((sum, part) => sum + part.bytes, 0);
  const used = parts.filter((part) => part.key !== "free");
  const used_bytes = used.reduce((sum, part) => sum + part.bytes, 0);
  const isEnlarged = used_bytes < total * ENLARGED_BELOW;
  const inUse: DevicePart = { key: "used", label: "in use", bytes: used_bytes };
  const bars = isEnlarged
    ? [
        bar([inUse, ...parts.slice(used.length)], total),
        connector(used_bytes / total),
        bar(used, used_bytes),
      ]
    : [bar(parts, total)];
  const label = parts.map((part) => `${nameOf(part)}: ${formatBytes(part.bytes)}`).join(", ");
  fill(
    parent,
    title,
    h("div", { class: "device-bars", role: "img", "aria-label": label }, ...bars),
    legend(parts, used_bytes, device.total_bytes),
  );
}

function bar(parts: DevicePart[], total: number): HTMLElement {
  const segments = parts.map((part) => {
    const title = `${nameOf(part)}: ${exactBytes(part.bytes)}`;
    const segment = h("span", { class: "device-part", title });
    segment.dataset.part = part.key;
    segment.style.width = `${(part.bytes / total) * 100}%`;
    if (part.key !== "free") segment.style.background = colorOf(part);
    return segment;
  });
  return h("div", { class: "device-bar" }, ...segments);
}

/** Joins the used part of the upper bar with the enlarged one below it. */
function connector(share: number): HTMLElement {
  const element = h("div", { class: "device-connector" });
  element.style.clipPath = `polygon(0 0, ${share * 100}% 0, 100% 100%, 0 100%)`;
  return element;
}

/** Without shares of the GPU if its memory is unknown. */
function legend(parts: DevicePart[], used_bytes: number, total: number | null): HTMLElement {
  const columns = total === null ? 4 : 5;
  const titles = ["Memory", "Size", "Bytes", "Of what is in use", "Of the GPU"].slice(0, columns);
  const heads = titles.map((text, index) =>
    h("th", { scope: "col", class: index > 0 ? "number" : null }, text));
  const rows = parts.map((part) => {
    const isFree = part.key === "free";
    const square = swatch(isFree ? "var(--raised)" : colorOf(part));
    square.classList.toggle("outlined", isFree);
    const cells = [
      formatBytes(part.bytes),
      formatCount(part.bytes),
      isFree ? "" : formatShare(part.bytes, used_bytes),
      formatShare(part.bytes, total),
    ].slice(0, columns - 1);
    const numbers = cells.map((text) => h("td", { class: "number" }, text));
    return h("tr", {}, h("th", { scope: "row" }, square, nameOf(part)), ...numbers);
  });
  const head = h("thead", {}, h("tr", {}, ...heads));
  return h("table", { class: "device-legend" }, head, h("tbody", {}, ...rows));
}

function nameOf(part: DevicePart): string {
  const cause = CAUSE_LABELS[part.key];
  if (!cause || part.label !== part.key) return part.label;
  return part.key === "rounding" ? "rounding of blocks" : `unused reserved: ${cause}`;
}

function colorOf(part: DevicePart): string {
  if (part.key === "used") return "var(--muted)";
  if (part.key === "outside") return HUES[1];
  if (part.key === "residual") return GREY;
  return CAUSE_COLORS[part.key] ?? GREY;
}
