//! How a GPU's memory differs from that of the trace that the page compares with: its levels, and
//! the call sites that `gpumemtrace compare` lists, in the same order and with the same numbers.

use gpumemtrace_replay::compare::{AmountChange, Comparison, LineChange};
use gpumemtrace_replay::report::Device;

use super::element::{Element, Node, element, number_cell, table_head};
use super::{CardTrace, ComparedWith, SiteBlocks, known_bytes, link_button, nodes, paragraph};
use crate::render::wording::comparison::{
    describe_move, describe_unlisted_difference, format_change, status_word,
};
use crate::terminal::format::{format_count, format_number};
use crate::terminal::units::format_bytes;

/// Call sites that are shown at first, and most call sites of the card.
const SHOWN_LINES: usize = 20;
const MAX_LINES: usize = 200;

/// The card of a device; empty if one of both traces does not have it.
pub(super) fn card(trace: &CardTrace<'_>, with: &ComparedWith<'_>, ordinal: u32) -> Vec<Node> {
    let ComparedWith { trace: before, comparison } = *with;
    let (Some(now), Some(was)) = (device_of(trace, ordinal), device_of(before, ordinal)) else {
        return Vec::new();
    };
    let name = &before.report.traces[before.trace].path;
    let mut card = nodes(element("h2").add(format!("GPU {ordinal} compared with {name}")));
    card.extend(nodes(level_table(now, was)));
    card.extend(nodes(extent(comparison)));
    card.extend(nodes(lines(trace, before, comparison, ordinal)));
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
        let change = before.zip(now).map_or_else(
            || "unknown".to_owned(),
            |(before, now)| format_change(AmountChange::new(before, now).change, true),
        );
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

/// Which steps are compared, and what is not.
fn extent(comparison: &Comparison) -> Element {
    let steps = comparison.steps.as_ref().map(|steps| {
        format!("Compared: steps {} to {}.", format_number(steps.first), format_number(steps.last))
    });
    let [before, after] = &comparison.runs;
    let differ = (comparison.steps.is_some() && before.steps != after.steps).then(|| {
        "The runs have different numbers of steps, which affects all columns that are not per step."
            .to_owned()
    });
    let notes = comparison.notes.iter().map(|note| format!("Note: {}.", note.message));
    let sentences: Vec<String> = steps.into_iter().chain(differ).chain(notes).collect();
    paragraph(sentences.join(" ")).class("muted")
}

/// The call sites that differ, largest change first.
fn lines(
    trace: &CardTrace<'_>,
    before: &CardTrace<'_>,
    comparison: &Comparison,
    ordinal: u32,
) -> Vec<Element> {
    let lines: Vec<&LineChange> = comparison.lines.iter().filter(|line| line.device == ordinal).collect();
    if lines.is_empty() {
        return vec![paragraph("No call site differs.")];
    }
    let has_steps = comparison.steps.is_some();
    let rows = lines.iter().take(MAX_LINES).enumerate().map(|(index, line)| {
        let row = line_row(line, has_steps, trace, before);
        if index < SHOWN_LINES { row } else { row.with("hidden", "") }
    });
    let per_step = has_steps.then_some("Per step");
    let names = ["Change", "Call site", "At peak", "Retained"].into_iter().chain(per_step);
    let names: Vec<&str> = names.chain(["Allocations"]).collect();
    let verb = if lines.len() == 1 { "differs" } else { "differ" };
    let title = format!("{} that {verb}", format_count(lines.len() as u64, "call site"));
    let table = element("table")
        .class("changes")
        .with("aria-label", title.as_str())
        .add(table_head(&names, 2..names.len()))
        .add(element("tbody").add(rows.collect::<Vec<_>>()));
    let hidden = lines.len().min(MAX_LINES).saturating_sub(SHOWN_LINES);
    let show = format!("Show {}", format_count(hidden as u64, "more call site"));
    let show = (hidden > 0).then(|| link_button(&show).with("reveal", "tr"));
    let more = lines.len().saturating_sub(MAX_LINES);
    let more = (more > 0).then(|| {
        let count = format_count(more as u64, "more call site");
        paragraph(format!("gpumemtrace compare --top N lists {count}.")).class("muted")
    });
    let frame = element("div").class("table-frame").add(table).add(show);
    [Some(element("h3").add(title)), Some(frame), more].into_iter().flatten().collect()
}

fn line_row(line: &LineChange, has_steps: bool, trace: &CardTrace<'_>, before: &CardTrace<'_>) -> Element {
    let bytes = |change: AmountChange| {
        number_cell(format_change(change.change, true)).with("title", both_amounts(change))
    };
    let allocations = line.allocations_per_step.or(line.allocations);
    let allocations = allocations.map(|change| format_change(change.change, false));
    let name = match (&line.after, &line.before) {
        (Some(site), _) => Some(trace.site_link(site, line.device, SiteBlocks::AtPeak)),
        (None, site) => site.as_ref().map(|site| before.site_link(site, line.device, SiteBlocks::AtPeak)),
    };
    let source = line.after.as_ref().and_then(|site| trace.site(site)?.source.as_deref());
    let source = source.map(|source| element("code").class("source-line").add(source));
    let steps = describe_unlisted_difference(line).map(|text| element("div").class("muted").add(text));
    let place = element("td").add(name).add(describe_move(line)).add(source).add(steps);
    let per_step = has_steps.then(|| line.bytes_per_step.map_or_else(|| element("td"), bytes));
    element("tr")
        .add(element("td").add(status_word(line.status)))
        .add(place)
        .add(bytes(line.at_peak_bytes))
        .add(bytes(line.retained_bytes))
        .add(per_step)
        .add(number_cell(allocations))
}

/// `4.00 MiB before, 8.00 MiB now`
fn both_amounts(change: AmountChange) -> String {
    format!("{} before, {} now", format_bytes(change.before), format_bytes(change.after))
}
