//! Reserved memory at the moments of the report, down to what tensors use, by cause and culprit.

use std::collections::BTreeMap;

use gpumemtrace_replay::report::{Cause, CauseKind, FitRow, Fragmentation, GapReason, PoolRow};
use serde::Serialize;

use super::element::{Color, Element, Node, element, number_cell, swatch, table_head};
use super::{CardTrace, SiteBlocks, paragraph};
use crate::render::wording::Vocabulary;
use crate::render::wording::fragmentation::{
    describe_cause, describe_gap_moment, name_cause, name_new_segment, name_pool,
};
use crate::render::wording::moment::format_moment;
use crate::terminal::format::{format_count, format_number, format_percent};
use crate::terminal::units::format_bytes;

/// Most call sites listed for a cause.
const MAX_CULPRITS: usize = 8;

/// A moment that the view offers in its menu.
#[derive(Debug, Serialize)]
pub(super) struct GapCard {
    device: u32,
    time_ns: u64,
    label: String,
    /// The view shows this moment first.
    is_first: bool,
    card: Node,
}

/// The names of all causes, in the order of charts from the top down.
pub(super) fn cause_names(trace: &CardTrace<'_>) -> BTreeMap<CauseKind, String> {
    let words = Vocabulary::of_trace(&trace.report.traces[trace.trace]);
    let all = [
        CauseKind::Rounding,
        CauseKind::PendingFree,
        CauseKind::StrandedStream,
        CauseKind::StrandedPool,
        CauseKind::Pinned,
        CauseKind::Cache,
        CauseKind::Unexplained,
    ];
    all.into_iter().map(|cause| (cause, name_cause(cause, &words))).collect()
}

/// The moments of a trace in the order of the report.
pub(super) fn cards(trace: &CardTrace<'_>) -> Vec<GapCard> {
    let moments: Vec<&Fragmentation> =
        trace.report.fragmentation.iter().flatten().filter(|moment| moment.trace == trace.trace).collect();
    let words = Vocabulary::of_trace(&trace.report.traces[trace.trace]);
    let first_of = |device: u32, why: GapReason| {
        moments.iter().position(|moment| moment.device == device && moment.at.why == why)
    };
    let cards = moments.iter().enumerate().map(|(index, moment)| {
        let first = first_of(moment.device, GapReason::Oom);
        let first = first.or_else(|| first_of(moment.device, GapReason::LargestGap));
        let time = format_moment(&words, moment.at.time_ns, moment.at.step);
        GapCard {
            device: moment.device,
            time_ns: moment.at.time_ns,
            label: format!("{} ({time})", describe_gap_moment(&moment.at)),
            is_first: first == Some(index),
            card: Node::Element(gap_card(moment, trace)),
        }
    });
    cards.collect()
}

fn gap_card(moment: &Fragmentation, trace: &CardTrace<'_>) -> Element {
    let words = Vocabulary::of_trace(&trace.report.traces[trace.trace]);
    let (gap, reserved) = (moment.gap_bytes, moment.reserved_bytes);
    let (used, what) = match moment.requested_bytes {
        Some(requested) => (requested, "requested by live blocks"),
        None => (moment.live_bytes, "allocated"),
    };
    let summary = format!(
        "Unused reserved: {} of {} ({})",
        format_bytes(gap),
        format_bytes(reserved),
        percent(gap, reserved)
    );
    let scale = match gap {
        0 => String::new(),
        gap => format!("; below, the full width is the unused {}", format_bytes(gap)),
    };
    let scale = format!("{} {what}{scale}.", format_bytes(used));
    let part = |name, bytes| element("span").colored(Color::Part(name)).wide(share(bytes, reserved));
    let parts = moment.causes.iter().rev().map(|cause| part(cause.cause.name(), cause.bytes));
    let bar = element("div").class("whole-bar").with("aria-hidden", "true").add(part("live", used));
    let mut left = gap;
    let rows = moment.causes.iter().map(|cause| {
        left = left.saturating_sub(cause.bytes);
        cause_row(cause, (left, gap), moment, &words, trace)
    });
    let rows: Vec<Element> = rows.collect();
    element("div")
        .class("waterfall")
        .add(paragraph(summary).class("summary-line"))
        .add(bar.add(parts.collect::<Vec<_>>()))
        .add(paragraph(scale).class("muted"))
        .add(element("ol").class("waterfall-rows").add(rows))
        .add(pools(&moment.pools))
        .add(common_sizes(&moment.common_sizes, &words))
}

/// `left` is what remains of the gap after this cause, to the left of its bar.
fn cause_row(
    cause: &Cause,
    (left, gap): (u64, u64),
    moment: &Fragmentation,
    words: &Vocabulary,
    trace: &CardTrace<'_>,
) -> Element {
    let color = Color::Part(cause.cause.name());
    let bar = element("span").colored(color).wide(share(cause.bytes, gap)).indented(share(left, gap));
    let name = element("span").class("waterfall-name").add(swatch(color)).add(name_cause(cause.cause, words));
    let head = element("div")
        .class("waterfall-head")
        .add(name)
        .add(element("span").class("number").add(format_bytes(cause.bytes)))
        .add(element("span").class("number muted").add(percent(cause.bytes, gap)))
        .add(element("span").class("track").with("aria-hidden", "true").add(bar));
    element("li")
        .add(head)
        .add(paragraph(describe_cause(cause, words)).class("muted"))
        .add(culprits(cause, moment, trace))
}

fn culprits(cause: &Cause, moment: &Fragmentation, trace: &CardTrace<'_>) -> Option<Element> {
    let link = |site| trace.site_link(site, moment.device, SiteBlocks::At(moment.at.time_ns));
    let row = |bytes: u64, name: Element| {
        element("li").add(element("span").class("number").add(format_bytes(bytes))).add(name)
    };
    let shown = cause.culprits.iter().take(MAX_CULPRITS);
    let shown: Vec<Element> = shown.map(|culprit| row(culprit.bytes, link(&culprit.site))).collect();
    let rest = cause.culprits.get(MAX_CULPRITS..).unwrap_or_default();
    let omitted = cause.omitted.unwrap_or_default();
    let sites = rest.len() as u64 + omitted.count;
    let bytes = rest.iter().fold(omitted.bytes.unwrap_or(0), |sum, one| sum.saturating_add(one.bytes));
    let others = (sites > 0 && bytes > 0)
        .then(|| row(bytes, element("span").class("muted").add(format_count(sites, "other call site"))));
    (!shown.is_empty()).then(|| element("ul").class("culprits").add(shown).add(others))
}

fn pools(pools: &[PoolRow]) -> Option<Element> {
    let head = ["Pool", "Segments", "Reserved", "Allocated", "Free", "Largest free"];
    let rows = pools.iter().map(|pool| {
        let expandable = if pool.is_expandable { ", expandable" } else { "" };
        let bytes = [pool.reserved_bytes, pool.allocated_bytes, pool.free_bytes, pool.largest_free_bytes];
        let name = format!("{}{expandable}", name_pool(&pool.key));
        let numbers = [format_number(pool.segments)].into_iter().chain(bytes.map(format_bytes));
        (name, numbers.collect())
    });
    let title = format!("Pools: {}", format_number(pools.len() as u64));
    (!pools.is_empty()).then(|| table_behind(&title, &head, rows.collect()))
}

fn common_sizes(sizes: &[FitRow], words: &Vocabulary) -> Option<Element> {
    let head = ["Size", "Requests in the run", "Fit now", "Their bytes", "Free there"];
    let rows = sizes.iter().map(|row| {
        let name = format!("{}, {}", format_bytes(row.block_bytes), name_pool(&row.key));
        let fitting = row.fitting_blocks.saturating_mul(row.block_bytes);
        let counts = [row.requests, row.fitting_blocks].map(format_number);
        (name, counts.into_iter().chain([fitting, row.free_bytes].map(format_bytes)).collect())
    });
    let title = format!("Requests that fit without {}", name_new_segment(words));
    (!sizes.is_empty()).then(|| table_behind(&title, &head, rows.collect()))
}

/// A table behind its title. Rows have a name and numbers.
fn table_behind(title: &str, head: &[&str], rows: Vec<(String, Vec<String>)>) -> Element {
    let rows = rows.into_iter().map(|(name, numbers)| {
        let numbers: Vec<Element> = numbers.into_iter().map(number_cell).collect();
        element("tr").add(element("td").add(name)).add(numbers)
    });
    let body = element("tbody").add(rows.collect::<Vec<_>>());
    let table = element("table").with("aria-label", title).add(table_head(head, 1..head.len())).add(body);
    element("details").add(element("summary").add(title)).add(element("div").class("scroll-x").add(table))
}

pub(super) fn share(bytes: u64, whole: u64) -> f64 {
    bytes as f64 / whole.max(1) as f64
}

pub(super) fn percent(bytes: u64, whole: u64) -> String {
    if whole > 0 { format_percent(share(bytes, whole)) } else { "unknown".to_owned() }
}
