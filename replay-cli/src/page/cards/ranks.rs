//! Ranks side by side: the highest peak, the first cause, and a row for each rank.

use std::fmt::Write as _;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{RankRow, Ranks, Site};
use serde_json::json;

use super::element::{Element, Node, element, number_cell, table_head};
use super::{CardTrace, SiteBlocks, link_button, nodes, paragraph};
use crate::render::wording::ranks::{describe_first_cause, describe_unaligned};
use crate::render::wording::sites::{format_rank, short_site};
use crate::terminal::format::{format_count, format_number, format_percent};
use crate::terminal::units::format_bytes;

/// Rows beyond this are left out; the note says so.
const MAX_ROWS: usize = 256;
/// Most call sites that explain the highest peak.
const MAX_SITES: usize = 3;

/// The card of the view; empty without several ranks.
pub(super) fn cards(report: &Report, traces: &[CardTrace<'_>]) -> Vec<Node> {
    let Some(ranks) = report.ranks.as_ref().filter(|ranks| ranks.rows.len() > 1) else { return Vec::new() };
    let head = table_head(
        &[
            "Rank",
            "Allocated over the run",
            "Peak allocated",
            "To the median",
            "Peak reserved",
            "At the end",
            "Growth",
        ],
        2..7,
    );
    let rows = ranks.rows.iter().take(MAX_ROWS).enumerate();
    let rows: Vec<Element> = rows.map(|(index, row)| rank_row(index, row, ranks, traces)).collect();
    let table = element("table").class("ranks").add(head).add(element("tbody").add(rows));
    nodes(
        element("div")
            .class("card")
            .add(element("h2").add("Ranks side by side"))
            .add(element("div").class("ranks-summary").add(summary(ranks, traces)))
            .add(element("div").class("table-frame").add(table))
            .add(paragraph(note(ranks)).class("muted")),
    )
}

fn summary(ranks: &Ranks, traces: &[CardTrace<'_>]) -> Vec<Element> {
    let mut lines = Vec::new();
    let worst = ranks.rows.get(ranks.worst as usize);
    if let Some(worst) = worst {
        let name = format_rank(worst, &ranks.rows);
        let (peak, median) =
            (format_bytes(worst.peak_live_bytes), format_bytes(ranks.median_peak_live_bytes));
        let excess = format_percent(ranks.excess.0);
        lines.push(paragraph(format!(
            "Highest peak: {name} with {peak}, {excess} above the median of {median}."
        )));
    }
    if let Some(cause) = &ranks.first_cause {
        let (began, lead) = describe_first_cause(cause, &ranks.rows);
        let row = &ranks.rows[cause.row as usize];
        let site = site_link(&cause.site, row, SiteBlocks::Kept, traces);
        let leaks = link_button("Open its leaks").opens(Some("leaks"), &json!({ "trace": row.trace }));
        lines.push(paragraph(format!("{began} at ")).add(site).add(format!(" ({lead}). ")).add(leaks));
    }
    for more in ranks.more_by_site.iter().take(MAX_SITES) {
        let name = worst.map_or_else(String::new, |worst| format_rank(worst, &ranks.rows));
        let bytes = format_bytes(more.bytes);
        let site = match worst {
            Some(row) => site_link(&more.site, row, SiteBlocks::AtPeak, traces),
            None => element("span").add(short_site(&more.site)),
        };
        let text = format!("At its peak, {name} had {bytes} more than the others at ");
        lines.push(paragraph(text).add(site).add("."));
    }
    if let Some(missing) = ranks.missing_ranks.filter(|missing| *missing > 0) {
        lines.push(paragraph(format!("{} without a trace.", format_count(missing, "rank"))));
    }
    lines
}

/// The name of a call site of a row. If the page has it, a click shows its stacks.
fn site_link(site: &Site, row: &RankRow, blocks: SiteBlocks, traces: &[CardTrace<'_>]) -> Element {
    match traces.get(row.trace) {
        Some(trace) => trace.site_link(site, row.device, blocks),
        None => element("span").add(short_site(site)),
    }
}

fn note(ranks: &Ranks) -> String {
    let mut note = "All curves have the same scale of bytes and time, since each recording began.".to_owned();
    if ranks.rows.len() > MAX_ROWS {
        let all = format_number(ranks.rows.len() as u64);
        let _ = write!(note, " Shown are {MAX_ROWS} of {all} rows.");
    }
    note += " ";
    note += &match ranks.aligned_by {
        Some(_) => "First causes are compared by step number.".to_owned(),
        None => describe_unaligned(&ranks.rows),
    };
    note
}

fn rank_row(index: usize, row: &RankRow, ranks: &Ranks, traces: &[CardTrace<'_>]) -> Element {
    let device = traces.get(row.trace).and_then(|trace| trace.device_index(row.device));
    let name = format_rank(row, &ranks.rows);
    let host = row.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
    let link = link_button(&format!("{name}{host}"));
    let link = match device {
        Some(device) => link.opens(Some("timeline"), &json!({ "trace": row.trace, "device": device })),
        None => link.with("disabled", ""),
    };
    let label = format!("{name}: peak {}", format_bytes(row.peak_live_bytes));
    let chart = json!({ "trace": row.trace, "device": device, "label": label });
    let spark = element("div").class("spark");
    let spark = if device.is_some() { spark.holds(chart) } else { spark };
    let is_worst = index as u64 == ranks.worst && ranks.excess.0 > 0.0;
    let line = if is_worst { element("tr").class("worst") } else { element("tr") };
    line.add(element("th").with("scope", "row").add(link))
        .add(element("td").add(spark))
        .add(number_cell(format_bytes(row.peak_live_bytes)))
        .add(number_cell(to_median(row, ranks)))
        .add(number_cell(format_bytes(row.peak_reserved_bytes)))
        .add(number_cell(format_bytes(row.end_live_bytes)))
        .add(number_cell(growth(row)))
}

/// `+12%`, the peak against the median of all.
fn to_median(row: &RankRow, ranks: &Ranks) -> String {
    match ranks.median_peak_live_bytes {
        0 => "unknown".to_owned(),
        median => format!("{:+.0}%", (row.peak_live_bytes as f64 / median as f64 - 1.0) * 100.0),
    }
}

/// `4.00 MiB/step since step 12`; empty without leaks.
fn growth(row: &RankRow) -> String {
    let Some(rate) = row.bytes_per_step else { return String::new() };
    let since = row.first_growth_step.map(|step| format!(" since step {}", format_number(step)));
    format!("{}/step{}", format_bytes(rate.0.round() as u64), since.unwrap_or_default())
}
