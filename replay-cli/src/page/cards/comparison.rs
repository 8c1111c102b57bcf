//! How a GPU differs from that of the trace that the page compares with: its levels, and the call
//! sites at its peak.

use std::collections::BTreeMap;

use gpumemtrace_replay::report::{Device, Site};

use super::element::{Element, Node, element, number_cell, table_head};
use super::{CardTrace, known_bytes, nodes, paragraph};
use crate::terminal::units::format_bytes;

/// Most call sites of the table.
const MOST_CHANGED_SITES: usize = 8;

/// Bytes of a call site at the peak: before, and now.
struct SiteChange<'a> {
    site: &'a Site,
    before: u64,
    now: u64,
}

/// The card of a device; empty if one of both traces does not have it.
pub(super) fn card(trace: &CardTrace<'_>, before: &CardTrace<'_>, ordinal: u32) -> Vec<Node> {
    let (Some(now), Some(was)) = (device_of(trace, ordinal), device_of(before, ordinal)) else {
        return Vec::new();
    };
    let name = &before.report.traces[before.trace].path;
    let mut card = nodes(element("h2").add(format!("GPU {ordinal} compared with {name}")));
    card.extend(nodes(level_table(now, was)));
    let changes = site_changes(trace, before, ordinal);
    if changes.is_empty() {
        card.extend(nodes(paragraph("The call sites at the peak hold the same bytes.").class("muted")));
    } else {
        card.extend(nodes(element("h3").add("Call sites at the peak that differ most")));
        card.extend(nodes(site_table(trace, &changes)));
    }
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

/// The call sites with different bytes at the peak, the largest difference first.
fn site_changes<'a>(trace: &CardTrace<'a>, before: &CardTrace<'a>, ordinal: u32) -> Vec<SiteChange<'a>> {
    let rows = |of: &CardTrace<'a>| {
        let index = of.trace;
        let peaks = of.report.peak.iter().flatten();
        let peak = peaks.into_iter().find(|peak| (peak.trace, peak.device) == (index, ordinal));
        peak.map(|peak| peak.sites.as_slice()).unwrap_or_default()
    };
    let mut changes: BTreeMap<&str, SiteChange<'a>> = BTreeMap::new();
    for row in rows(before) {
        changes.insert(&row.site.id, SiteChange { site: &row.site, before: row.bytes, now: 0 });
    }
    for row in rows(trace) {
        let change = changes.entry(&row.site.id);
        change.or_insert(SiteChange { site: &row.site, before: 0, now: 0 }).now = row.bytes;
    }
    let mut changes: Vec<SiteChange<'a>> =
        changes.into_values().filter(|change| change.before != change.now).collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.before.abs_diff(change.now)));
    changes.truncate(MOST_CHANGED_SITES);
    changes
}

fn site_table(trace: &CardTrace<'_>, changes: &[SiteChange<'_>]) -> Element {
    let rows = changes.iter().map(|change| {
        element("tr")
            .add(element("td").add(trace.site_link(change.site, Some("timeline"))))
            .add(number_cell(format_bytes(change.before)))
            .add(number_cell(format_bytes(change.now)))
            .add(number_cell(change_of(change.before, change.now)))
    });
    let body = element("tbody").add(rows.collect::<Vec<_>>());
    let head = table_head(&["Call site", "Before", "Now", "Difference"], 1..4);
    element("div").class("table-frame").add(element("table").class("largest").add(head).add(body))
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
