//! Out of memory: what was requested, why it did not fit, what helps, and what held the memory.

use gpumemtrace_replay::report::{Oom, Remedy, Site};
use serde_json::json;

use super::element::{Color, Content, Element, Node, element, list, number_cell, swatch, table_head};
use super::oom_memory::{device_bar, request_bars};
use super::stack::stack_list;
use super::{CardTrace, SiteBlocks, case, held_by, nodes, paragraph, view_button};
use crate::render::wording::fragmentation::describe_cause;
use crate::render::wording::leaks::holders::format_holder;
use crate::render::wording::oom::groups::{OomGroup, group_ooms};
use crate::render::wording::oom::growth::{
    describe_blocks, format_growth, listed_growth, listed_unchanged, share_of_live,
};
use crate::render::wording::oom::{
    NONE_OF_PYTORCH, compare_with_earlier_steps, describe_recovery, find_refused_calls, remedy_state,
    sort_remedies,
};
use crate::render::wording::{Vocabulary, sentence};
use crate::terminal::format::{format_count, format_number, format_percent};
use crate::terminal::units::format_bytes;

/// Most kinds of errors with a card, and most call sites in each.
const MAX_CARDS: usize = 20;
const MAX_SITES: usize = 20;

/// A card for each kind of error; empty if no trace of the report has one.
pub(super) fn cards(trace: &CardTrace<'_>) -> Vec<Node> {
    let mut all = trace.report.oom.iter().flatten().peekable();
    if all.peek().is_none() {
        return Vec::new();
    }
    let ooms: Vec<&Oom> = all.filter(|oom| oom.trace == trace.trace).collect();
    let groups = group_ooms(&ooms);
    let card = |text: String| nodes(paragraph(text).class("card"));
    if groups.is_empty() {
        let refused = find_refused_calls(trace.report, trace.trace);
        let text = if refused.is_some() { NONE_OF_PYTORCH } else { "No out-of-memory errors in this trace." };
        return card(text.to_owned());
    }
    let mut cards: Vec<Node> =
        groups.iter().take(MAX_CARDS).flat_map(|group| nodes(oom_card(group, trace))).collect();
    if let Some(more) = groups.len().checked_sub(MAX_CARDS).filter(|more| *more > 0) {
        let more = format_count(more as u64, "other kind");
        cards.extend(card(format!("{more} of errors are in the JSON report.")));
    }
    cards
}

fn oom_card(group: &OomGroup<'_>, trace: &CardTrace<'_>) -> Element {
    let oom = group.last;
    let words = Vocabulary::of_trace(&trace.report.traces[trace.trace]);
    let severity = if oom.recovered == Some(true) { "warning" } else { "critical" };
    let outcome = describe_recovery(oom.recovered).map(|outcome| format!("; {outcome}"));
    let badge = format!("Out of memory{}", outcome.unwrap_or_default());
    let requested = format_bytes(oom.requested_bytes);
    let last = if group.count > 1 { "; shown is the last one" } else { "" };
    let moments = format!("GPU {}, {}{last}", oom.device, group.describe_moments(&words));
    let columns = || element("div").class("case-columns");
    case("article", severity)
        .add(paragraph(badge).class("badge"))
        .add(
            element("h2")
                .class("case-title")
                .add(format!("{requested} requested at "))
                .add(site_link(&oom.site, oom, trace)),
        )
        .add(paragraph(moments).class("muted"))
        .add(trace.source(&oom.site))
        .add(paragraph(sentence(&oom.why)).class("oom-why"))
        .add(compare_with_earlier_steps(oom).map(|text| paragraph(text).class("muted")))
        .add(device_bar(oom, &words))
        .add(request_bars(oom, words.reserver))
        .add(columns().add(growth(oom, trace)).add(remedies(&oom.remedies)))
        .add(columns().add(live_sites(oom, trace)).add(unused(oom, &words)))
        .add(stack_list("Requested at", &oom.site))
        .add(links(oom, trace))
}

/// The lines that grew towards the error, and the largest ones that did not.
fn growth(oom: &Oom, trace: &CardTrace<'_>) -> Element {
    let grown = listed_growth(oom, usize::MAX);
    let none = grown.is_empty().then(|| paragraph("No line grew by much.").class("muted"));
    let lines = grown.into_iter().map(|line| {
        let holder = line.holders.as_ref().and_then(|holders| holders.first());
        element("div")
            .class("oom-line")
            .add(
                paragraph(element("strong").add(format_growth(line)))
                    .add(" at ")
                    .add(site_link(&line.site, oom, trace)),
            )
            .add(paragraph(format!("{}, {}", share_of_live(line, oom), describe_blocks(line))).class("muted"))
            .add(trace.source(&line.site))
            .add(holder.map(|holder| held_by(&format_holder(holder))))
    });
    let lines: Vec<Element> = lines.collect();
    let older: Vec<Vec<Element>> = listed_unchanged(oom, usize::MAX)
        .map(|line| amount_of(line.bytes, site_link(&line.site, oom, trace)))
        .collect();
    let older = (!older.is_empty())
        .then(|| vec![element("h3").add("Allocated earlier, not growing"), list("oom-list", older)]);
    let title = element("h3").add("Grew before the error");
    element("div").add(title).add(none).add(lines).add(older)
}

/// An amount and what it is of, for a row of a list.
fn amount_of(bytes: u64, what: impl Content) -> Vec<Element> {
    vec![element("span").class("number").add(format_bytes(bytes)), element("span").add(what)]
}

/// A click shows the stacks of the call site at the error.
fn site_link(site: &Site, oom: &Oom, trace: &CardTrace<'_>) -> Element {
    trace.site_link(site, oom.device, SiteBlocks::At(oom.time_ns))
}

fn remedies(remedies: &[Remedy]) -> Element {
    let items = sort_remedies(remedies).into_iter().map(|remedy| {
        let state = remedy_state(remedy);
        let badge = element("span").class("remedy-state").with("data-state", state).add(state);
        vec![badge, element("span").add(sentence(&remedy.action))]
    });
    let none = remedies.is_empty().then(|| paragraph("None known.").class("muted"));
    let list = list("remedies", items);
    element("div").add(element("h3").add("Remedies")).add(list).add(none)
}

/// The call sites with most bytes at the error.
fn live_sites(oom: &Oom, trace: &CardTrace<'_>) -> Element {
    let shown = &oom.sites[..oom.sites.len().min(MAX_SITES)];
    let share = |bytes: u64| match oom.live_bytes {
        0 => "unknown".to_owned(),
        live => format_percent(bytes as f64 / live as f64),
    };
    let rows = shown.iter().map(|row| {
        let cell = element("span").class("site-cell").add(swatch(trace.color(&row.site)));
        element("tr")
            .add(element("td").add(cell.add(site_link(&row.site, oom, trace))))
            .add(number_cell(format_bytes(row.bytes)))
            .add(number_cell(share(row.bytes)))
            .add(number_cell(format_number(row.blocks)))
    });
    let listed = shown.iter().fold(0u64, |sum, row| sum.saturating_add(row.bytes));
    let rest = oom.live_bytes.saturating_sub(listed);
    let others = (rest > 0).then(|| {
        element("tr")
            .add(element("td").class("muted").add("other call sites"))
            .add(number_cell(format_bytes(rest)))
            .add(number_cell(share(rest)))
            .add(element("td"))
    });
    let head = table_head(&["Call site", "Bytes", "Share", "Blocks"], 1..4);
    let body = element("tbody").add(rows.collect::<Vec<_>>()).add(others);
    element("div")
        .add(element("h3").add(format!("Allocated {} by call site", format_bytes(oom.live_bytes))))
        .add(element("table").add(head).add(body))
}

fn unused(oom: &Oom, words: &Vocabulary) -> Element {
    let causes = oom.unused_causes.iter().map(|cause| {
        let mut row = amount_of(cause.bytes, describe_cause(cause, words));
        row.insert(1, swatch(Color::Part(cause.cause.name())));
        row
    });
    let unknown = oom.unused_causes.is_empty().then(|| paragraph("unknown").class("muted"));
    element("div").add(element("h3").add("Reserved but unused")).add(list("oom-list", causes)).add(unknown)
}

fn links(oom: &Oom, trace: &CardTrace<'_>) -> Element {
    let change = json!({
        "trace": trace.page_trace,
        "device": trace.device_index(oom.device).unwrap_or(0),
        "from_ns": oom.time_ns,
        "to_ns": null,
    });
    let views = [
        ("timeline", "Show in timeline"),
        ("flame", "Flame graph of this moment"),
        ("fragmentation", "Segment map"),
    ];
    let buttons = views.map(|(view, text)| view_button(text, view, &change));
    element("div").class("case-links").add(buttons.to_vec())
}
