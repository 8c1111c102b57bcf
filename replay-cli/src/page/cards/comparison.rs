//! How the levels of a GPU differ from those of the trace that the page compares with. Which lines
//! differ is shown by the flame graph; `gpumemtrace compare` also finds lines that moved.

use gpumemtrace_replay::report::Device;

use super::element::{Element, Node, element, number_cell, table_head};
use super::{CardTrace, known_bytes, nodes};
use crate::terminal::units::format_bytes;

/// The card of a device; empty if one of both traces does not have it.
pub(super) fn card(trace: &CardTrace<'_>, before: &CardTrace<'_>, ordinal: u32) -> Vec<Node> {
    let (Some(now), Some(was)) = (device_of(trace, ordinal), device_of(before, ordinal)) else {
        return Vec::new();
    };
    let name = &before.report.traces[before.trace].path;
    let mut card = nodes(element("h2").add(format!("GPU {ordinal} compared with {name}")));
    card.extend(nodes(level_table(now, was)));
    card
}

fn device_of<'a>(trace: &CardTrace<'a>, ordinal: u32) -> Option<&'a Device> {
    trace.report.devices.iter().find(|device| (device.trace, device.device) == (trace.trace, ordinal))
}

/// The highest allocated, reserved and driver memory of both.
fn level_table(now: &Device, was: &Device) -> Element {
    let rows = [
        ("Allocated, highest", was.peak.live_bytes, now.peak.live_bytes),
        ("Reserved, highest", was.peak.reserved_bytes, now.peak.reserved_bytes),
        ("Driver, highest", was.peak.device_bytes, now.peak.device_bytes),
    ];
    let rows = rows.map(|(name, before, now)| {
        let change =
            before.zip(now).map_or_else(|| "unknown".to_owned(), |(before, now)| change_of(before, now));
        element("tr")
            .add(element("th").with("scope", "row").add(name))
            .add(number_cell(known_bytes(before)))
            .add(number_cell(known_bytes(now)))
            .add(number_cell(change))
    });
    let body = element("tbody").add(rows.to_vec());
    let head = table_head(&["", "Before", "Now", "Difference"], 1..4);
    element("div").class("table-frame").add(element("table").add(head).add(body))
}

/// `+1.00 MiB`, `-512 B`, `0 B`.
fn change_of(before: u64, now: u64) -> String {
    let sign = match now.cmp(&before) {
        std::cmp::Ordering::Less => "-",
        std::cmp::Ordering::Equal => "",
        std::cmp::Ordering::Greater => "+",
    };
    format!("{sign}{}", format_bytes(before.abs_diff(now)))
}
