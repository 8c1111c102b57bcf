//! The memory of a GPU when the driver had handed out most, as a bar and a table.

use gpumemtrace_replay::report::{CauseKind, Device};

use super::element::{Color, Element, Node, element, number_cell, swatch, table_head};
use super::{CardTrace, exact_bytes, nodes, paragraph};
use crate::render::wording::Vocabulary;
use crate::render::wording::fragmentation::name_cause;
use crate::terminal::format::{format_number, format_percent};
use crate::terminal::units::format_bytes;

/// With more than this share of the GPU free, a second bar shows the rest enlarged.
const ENLARGED_BELOW: f64 = 0.3;

/// Blocks of PyTorch and its cache, as the ledger names them.
const BLOCKS: &str = "torch blocks";
const CACHE: &str = "torch cache";

/// A part of the memory; all parts sum up to the whole.
struct DevicePart {
    /// A cause of unused memory, or `live`, `outside`, `residual`, `used`, `free`.
    key: &'static str,
    label: String,
    bytes: u64,
}

/// The title, the bars and the table.
pub(super) fn card(device: &Device, trace: &CardTrace<'_>) -> Vec<Node> {
    let title = format!("Memory of GPU {} at the peak of the driver", device.device);
    let mut card = nodes(element("h2").add(title));
    let parts = split_device(device, trace);
    if parts.is_empty() {
        let unknown = "unknown: the trace has no calls of the driver.";
        card.extend(nodes(paragraph(unknown).class("muted")));
        return card;
    }
    let total = device.total_bytes.unwrap_or_else(|| sum_bytes(&parts));
    let used = sum_bytes(parts.iter().filter(|part| part.key != "free"));
    let label: Vec<String> =
        parts.iter().map(|part| format!("{}: {}", part.label, format_bytes(part.bytes))).collect();
    let bars = element("div").class("device-bars").with("role", "img").with("aria-label", label.join(", "));
    card.extend(nodes(bars.add(device_bars(&parts, used, total))));
    card.extend(nodes(legend(&parts, used, device.total_bytes)));
    card
}

fn sum_bytes<'a>(parts: impl IntoIterator<Item = &'a DevicePart>) -> u64 {
    parts.into_iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
}

/// Splits the memory at the peak of the driver; empty without a ledger. Reserved memory is split by
/// cause if the report has the causes for the same amounts.
fn split_device(device: &Device, trace: &CardTrace<'_>) -> Vec<DevicePart> {
    let part = |key, label: &str, bytes| DevicePart { key, label: label.to_owned(), bytes };
    let words = Vocabulary::of_trace(&trace.report.traces[trace.trace]);
    let bytes_of = |owner: &str| -> u64 {
        device.ledger.iter().filter(|held| held.owner == owner).map(|held| held.bytes).sum()
    };
    let (live, cache) = (bytes_of(BLOCKS), bytes_of(CACHE));
    let gap = trace.report.fragmentation.iter().flatten().find(|gap| {
        (gap.trace, gap.device) == (device.trace, device.device)
            && (gap.live_bytes, gap.reserved_bytes) == (live, live.saturating_add(cache))
    });
    let mut parts = Vec::new();
    if let Some(gap) = gap {
        let requested = gap.reserved_bytes.saturating_sub(gap.gap_bytes);
        parts.push(part("live", "in tensors (requested)", requested));
        parts.extend(gap.causes.iter().map(|cause| {
            let label = match cause.cause {
                CauseKind::Rounding => "rounding of blocks".to_owned(),
                unused => format!("unused reserved: {}", name_cause(unused, &words)),
            };
            DevicePart { key: cause.cause.name(), label, bytes: cause.bytes }
        }));
    } else {
        parts.push(part("live", "allocated", live));
        parts.push(part("cache", "unused reserved", cache));
    }
    let others = device.ledger.iter().filter(|held| held.owner != BLOCKS && held.owner != CACHE);
    parts.extend(others.map(|held| part("outside", &held.owner, held.bytes)));
    let residual = "outside recorded calls (contexts, code, rounding)";
    parts.extend(device.residual_bytes.map(|bytes| part("residual", residual, bytes)));
    if device.ledger.is_empty() {
        return Vec::new();
    }
    let free = device.total_bytes.and_then(|total| total.checked_sub(sum_bytes(&parts)));
    let free_name = if device.residual_bytes.is_some() {
        "free on the GPU"
    } else {
        "free, or used outside recorded calls"
    };
    parts.extend(free.map(|free| part("free", free_name, free)));
    parts.retain(|part| part.bytes > 0);
    parts
}

/// The whole GPU, and the used part of it if it is small.
fn device_bars(parts: &[DevicePart], used: u64, total: u64) -> Vec<Element> {
    let share = used as f64 / total.max(1) as f64;
    let bar = |parts: &mut dyn Iterator<Item = &DevicePart>, whole: u64| {
        let segments = parts.map(|part| {
            let title = format!("{}: {}", part.label, exact_bytes(part.bytes));
            let share = part.bytes as f64 / whole.max(1) as f64;
            let segment = element("span").class("device-part").with("title", title).wide(share);
            if part.key == "free" { segment } else { segment.colored(Color::Part(part.key)) }
        });
        element("div").class("device-bar").add(segments.collect::<Vec<_>>())
    };
    if share >= ENLARGED_BELOW {
        return vec![bar(&mut parts.iter(), total)];
    }
    let in_use = DevicePart { key: "used", label: "in use".to_owned(), bytes: used };
    let free = parts.iter().filter(|part| part.key == "free");
    let whole = bar(&mut [&in_use].into_iter().chain(free), total);
    let enlarged = bar(&mut parts.iter().filter(|part| part.key != "free"), used);
    vec![whole, element("div").class("device-connector").with("cut", share), enlarged]
}

/// Without shares of the GPU if its memory is unknown.
fn legend(parts: &[DevicePart], used: u64, total: Option<u64>) -> Element {
    let percent = |bytes: u64, whole: u64| match whole {
        0 => "unknown".to_owned(),
        whole => format_percent(bytes as f64 / whole as f64),
    };
    let rows = parts.iter().map(|part| {
        let square = swatch(Color::Part(part.key));
        let is_free = part.key == "free";
        let square = if is_free { square.class("swatch outlined") } else { square };
        let of_used = if is_free { String::new() } else { percent(part.bytes, used) };
        element("tr")
            .add(element("th").with("scope", "row").add(square).add(part.label.as_str()))
            .add(number_cell(format_bytes(part.bytes)))
            .add(number_cell(format_number(part.bytes)))
            .add(number_cell(of_used))
            .add(total.map(|total| number_cell(percent(part.bytes, total))))
    });
    let names = ["Memory", "Size", "Bytes", "Of what is in use", "Of the GPU"];
    let names = if total.is_some() { &names[..] } else { &names[..4] };
    let head = table_head(names, 1..5);
    let body = element("tbody").add(rows.collect::<Vec<_>>());
    element("table").class("device-legend").add(head).add(body)
}
