//! What the page says about a GPU: its levels, the largest call sites at its peak, other settings.

use gpumemtrace_replay::report::{Device, GapReason, Peak};
use serde::Serialize;
use serde_json::json;

use super::element::{Element, Node, element, number_cell, table_head};
use super::{
    CardTrace, ComparedWith, SiteBlocks, comparison, device_memory, known_bytes, nodes, setting_effects,
    view_link,
};
use crate::render::wording::Vocabulary;
use crate::render::wording::end_levels::EndLevels;
use crate::render::wording::moment::format_moment;
use crate::render::wording::steps::count_steps;
use crate::terminal::format::{format_count, format_duration, format_number, format_percent};
use crate::terminal::units::format_bytes;

pub(super) const LARGEST_SITES: usize = 8;

/// What the page says about a device. Cards are empty if the report has no such device.
#[derive(Debug, Default, Serialize)]
pub(super) struct DeviceCards {
    figures: Vec<Node>,
    memory: Vec<Node>,
    sites: Vec<Node>,
    settings: Vec<Node>,
    /// Empty unless the page compares this trace with another.
    comparison: Vec<Node>,
}

/// The cards of each device of the page; without devices, only the figures of the run.
pub(super) fn cards(trace: &CardTrace<'_>, before: Option<&ComparedWith<'_>>) -> Vec<DeviceCards> {
    if trace.devices.is_empty() {
        let figures = figures(None, trace);
        return vec![DeviceCards { figures, ..DeviceCards::default() }];
    }
    let cards = trace.devices.iter().map(|device| {
        let is_same = |one: (usize, u32)| one == (trace.trace, device.ordinal);
        let info = trace.report.devices.iter().find(|info| is_same((info.trace, info.device)));
        let mut peaks = trace.report.peak.iter().flatten();
        let peak = peaks.find(|peak| is_same((peak.trace, peak.device)));
        DeviceCards {
            figures: figures(info, trace),
            memory: info.map(|info| device_memory::card(info, trace)).unwrap_or_default(),
            sites: peak.map(|peak| largest_sites(peak, trace)).unwrap_or_default(),
            settings: setting_effects::cards(trace, device.ordinal),
            comparison: before
                .map(|before| comparison::card(trace, before, device.ordinal))
                .unwrap_or_default(),
        }
    });
    cards.collect()
}

fn figures(device: Option<&Device>, trace: &CardTrace<'_>) -> Vec<Node> {
    let unknown = || "unknown".to_owned();
    let mut rows: Vec<(&str, String)> = Vec::new();
    if let Some(device) = device {
        let peak = &device.peak;
        let words = Vocabulary::of_trace(&trace.report.traces[trace.trace]);
        let time = peak.time_ns.map_or_else(unknown, |time_ns| format_moment(&words, time_ns, peak.step));
        let share = peak.live_bytes.zip(device.total_bytes.filter(|total| *total > 0));
        let share = share.map(|(live, total)| format_percent(live as f64 / total as f64));
        rows.push(("Peak at", time));
        rows.push(("Memory of the GPU", known_bytes(device.total_bytes)));
        rows.push(("Peak allocated, share", share.unwrap_or_else(unknown)));
    }
    let source = trace.report.steps.as_ref().filter(|_| trace.trace == 0).and_then(|steps| steps.source);
    let source = source.map(|source| format!(" ({})", source.name())).unwrap_or_default();
    let steps = count_steps(trace.report, trace.trace);
    // The report has the steps of the first trace, and those of ranks.
    let missing = if trace.trace == 0 { "none found" } else { "unknown" };
    let steps = steps.map_or_else(|| missing.to_owned(), |steps| format_number(steps) + &source);
    rows.push(("Steps", steps));
    let duration = trace.report.traces[trace.trace].duration_ns;
    rows.push(("Duration", duration.map_or_else(unknown, format_duration)));
    let title = device.map_or_else(
        || "The run".to_owned(),
        |device| {
            let name = device.name.as_ref().map(|name| format!(": {name}")).unwrap_or_default();
            format!("GPU {}{name}", device.device)
        },
    );
    let mut card = nodes(element("h2").add(title));
    card.extend(nodes(device.map(level_table)));
    card.extend(nodes(super::element::facts("", &rows)));
    card
}

/// A name, the highest bytes of that memory, and its bytes at the end.
pub(super) type LevelRow = (&'static str, Option<u64>, Option<u64>);

/// Allocated, reserved and driver memory.
pub(super) fn level_rows(device: &Device, end: &EndLevels) -> [LevelRow; 3] {
    let peak = &device.peak;
    [
        ("Allocated", peak.live_bytes, end.live_bytes),
        ("Reserved", peak.reserved_bytes, end.reserved_bytes),
        ("Driver", peak.device_bytes, end.device_bytes),
    ]
}

/// The head of the column of the end.
pub(super) fn end_title(end: &EndLevels) -> &'static str {
    if end.gap == GapReason::LastStep { "Last step" } else { "At end" }
}

/// Allocated, reserved and driver memory, each at its own highest, and at the end.
fn level_table(device: &Device) -> Element {
    let end = EndLevels::of_device(device);
    let rows = level_rows(device, &end);
    let cell = |bytes| element("td").class("number figure").add(known_bytes(bytes));
    let rows = rows.map(|(name, peak, end)| {
        let name = element("th").with("scope", "row").add(name);
        element("tr").add(name).add(cell(peak)).add(cell(end))
    });
    let head = |text: &str| element("th").with("scope", "col").class("number").add(text);
    let end = head(end_title(&end)).with("title", end.moment.as_str());
    let head = element("tr").add(element("td")).add(head("Highest")).add(end);
    let body = element("tbody").add(rows.to_vec());
    element("table").class("levels").add(element("thead").add(head)).add(body)
}

/// The share of the allocated bytes at the peak.
pub(super) fn share_of_peak(bytes: u64, peak: &Peak) -> String {
    match peak.live_bytes {
        0 => "unknown".to_owned(),
        live => format_percent(bytes as f64 / live as f64),
    }
}

fn largest_sites(peak: &Peak, trace: &CardTrace<'_>) -> Vec<Node> {
    let words = Vocabulary::of_trace(&trace.report.traces[trace.trace]);
    let moment = format_moment(&words, peak.time_ns, peak.step);
    let title = format!("Largest call sites at the peak, {moment}");
    let all = format!("See {}", format_count(peak.sites.len() as u64, "call site"));
    let most = peak.sites.first().map_or(1, |largest| largest.bytes.max(1));
    let rows = peak.sites.iter().take(LARGEST_SITES).map(|row| {
        let name = trace.site_link(&row.site, peak.device, SiteBlocks::AtPeak);
        let source = trace.site(&row.site).and_then(|site| site.source.as_deref());
        let source = source.map(|source| element("code").class("source-line").add(source));
        let bar =
            element("span").class("bar").colored(trace.color(&row.site)).wide(row.bytes as f64 / most as f64);
        let share = share_of_peak(row.bytes, peak);
        let category = row.categories.as_ref().and_then(|categories| categories.first());
        let category = category.map(|part| part.category.name().replace('_', " "));
        element("tr")
            .add(element("td").add(name).add(source))
            .add(element("td").class("bar-cell").with("aria-hidden", "true").add(bar))
            .add(number_cell(format_bytes(row.bytes)))
            .add(number_cell(share))
            .add(number_cell(format_number(row.blocks)))
            .add(element("td").add(category))
    });
    let body = element("tbody").add(rows.collect::<Vec<_>>());
    let names = table_head(&["Call site", "", "Bytes", "Share", "Blocks", "Category"], 2..5);
    let table = element("table").class("largest").add(names).add(body);
    let link = view_link(&all, "sites", &json!({}));
    let head = element("div").class("card-head").add(element("h2").add(title)).add(link);
    let mut card = nodes(head);
    card.extend(nodes(element("div").class("table-frame").add(table)));
    card
}
