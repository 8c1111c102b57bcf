//! Leaks: whether they could be judged, and a card for each.

use std::collections::BTreeMap;

use gpumemtrace_replay::report::{AssessmentStatus, Leak, LeakKind, LeakShape, Site};
use serde_json::json;

use super::element::{Element, Node, element, facts, list, swatch};
use super::{
    CardTrace, SiteBlocks, case, growth, link_button, name_trace, nodes, paragraph, stack::stack_list,
    view_button,
};
use crate::render::wording::Vocabulary;
use crate::render::wording::assessment::{describe_assessment, find_assessment};
use crate::render::wording::leaks::explanation::{describe_leaf, describe_share, explain_leak};
use crate::render::wording::leaks::growth::{
    describe_forecast, describe_growth, format_rate, format_rate_interval,
};
use crate::render::wording::leaks::holders::{
    describe_other_holders, describe_unresolved, explain_no_scan, format_holder, suggest_holders,
};
use crate::render::wording::leaks::label_leak;
use crate::render::wording::steps::describe_basis;
use crate::terminal::format::{format_count, format_number};

const MAX_MEMBERS: usize = 8;
const MAX_HOLDERS: usize = 4;

/// The cards of the view; empty if the report has no section on leaks.
pub(super) fn cards(trace: &CardTrace<'_>) -> Vec<Node> {
    let report = trace.report;
    if report.leaks.is_none() && report.leak_assessment.is_none() {
        return Vec::new();
    }
    let leaks: Vec<&Leak> = report.leaks.iter().flatten().filter(|leak| leak.trace == trace.trace).collect();
    let mut all = nodes(summary(&leaks, trace));
    for leak in &leaks {
        let is_alone = leaks.iter().filter(|other| other.device == leak.device).count() == 1;
        all.extend(nodes(leak_card(leak, is_alone, trace)));
    }
    all.extend(growth::cards(trace));
    all.extend(nodes(growth::footer(trace)));
    all
}

/// Doubts come first: a run that was not judged is not a run without leaks.
fn summary(leaks: &[&Leak], trace: &CardTrace<'_>) -> Element {
    let assessment = find_assessment(trace.report, trace.trace);
    let is_judged = assessment.is_some_and(|assessment| assessment.status == AssessmentStatus::Assessed);
    let mut parts: Vec<Element> = Vec::new();
    match assessment {
        None => parts.push(paragraph("It is unknown whether leaks could be judged.")),
        Some(assessment) if leaks.is_empty() || !is_judged => {
            let basis = describe_basis(" in ", trace.report, trace.trace);
            let judged = format!("{}.", describe_assessment(assessment, &basis));
            parts.push(paragraph(judged).class("summary-line"));
            parts.extend(assessment.remedy.as_deref().map(paragraph));
        }
        Some(_) => {}
    }
    if !leaks.is_empty() {
        let count = format_count(leaks.len() as u64, "leak");
        let basis = describe_basis(" over ", trace.report, trace.trace);
        parts.push(paragraph(format!("{count}{basis}, worst first.")).class("summary-line"));
    }
    let has_growth = assessment.is_some_and(|assessment| !assessment.growth.is_empty());
    let severity = match (is_judged, leaks.is_empty(), has_growth) {
        (true, false, _) => "critical",
        (false, ..) | (true, true, true) => "warning",
        (true, true, false) => "good",
    };
    case("div", severity).add(parts).add(other_traces(trace))
}

/// Links to the leaks of the other traces.
fn other_traces(trace: &CardTrace<'_>) -> Option<Element> {
    let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
    for leak in trace.report.leaks.iter().flatten().filter(|leak| leak.trace != trace.trace) {
        *counts.entry(leak.trace).or_default() += 1;
    }
    let links = counts.iter().map(|(other, count)| {
        let name = name_trace(trace.report, *other);
        let text = format!("{name}: {}", format_count(*count, "leak"));
        link_button(&text).opens(None, &json!({ "trace": other }))
    });
    let links: Vec<Element> = links.collect();
    (!links.is_empty()).then(|| paragraph("Other traces: ").class("other-traces").add(links))
}

fn leak_card(leak: &Leak, is_alone: bool, trace: &CardTrace<'_>) -> Element {
    let words = Vocabulary::of_trace(&trace.report.traces[leak.trace]);
    let color = trace.site(&leak.site).map(|_| swatch(trace.color(&leak.site)));
    let title = element("h2")
        .class("case-title")
        .add(format!("{} at ", format_rate(leak)))
        .add(color)
        .add(" ")
        .add(site_link(&leak.site, leak, trace));
    let forecast = describe_forecast(leak, is_alone);
    let growth =
        paragraph(format!("{}. ", describe_growth(leak))).add(element("strong").add(forecast.trim_start()));
    let text = element("div").add(growth).add(paragraph(explain_leak(leak, &words)));
    let card = case("article", "critical")
        .add(paragraph(label_leak(leak.kind, leak.grows_by, leak.is_regular)).class("badge"))
        .add(title)
        .add(trace.source(&leak.site));
    add_details(card, text, leak, trace)
}

/// Adds what leaks and possible leaks have: numbers, holders, the curve, stacks and links. `text`
/// is what is said of the growth.
pub(super) fn add_details(card: Element, text: Element, leak: &Leak, trace: &CardTrace<'_>) -> Element {
    let text = text.add(numbers(leak)).add(holders(leak, trace));
    card.add(element("div").class("case-columns").add(text).add(curve(leak, trace)))
        .add(places(leak, trace))
        .add(links(leak, trace))
}

fn numbers(leak: &Leak) -> Element {
    let mut rows = Vec::new();
    rows.extend(format_rate_interval(leak).map(|interval| ("Rate, 95% interval", interval)));
    rows.extend(describe_share(leak).map(|share| ("Share", share)));
    rows.extend(leak.confidence.map(|value| ("Confidence", format!("{value:.2}"))));
    facts("facts", &rows)
}

fn holders(leak: &Leak, trace: &CardTrace<'_>) -> Option<Element> {
    let (Some(holders), Some(coverage)) = (&leak.holders, &leak.holder_coverage) else {
        let has_tensors = leak.kind == LeakKind::Tensors;
        let suggestion = suggest_holders(trace.report, leak.trace).filter(|_| has_tensors);
        let text = explain_no_scan(trace.report, leak).or(suggestion)?;
        return Some(paragraph(text).class("muted"));
    };
    let all = format_count(coverage.blocks, "block");
    let shown = holders.iter().take(MAX_HOLDERS).map(|holder| {
        let name = element("code").add(format_holder(holder));
        let blocks = format!(": {} of {all}", format_number(holder.blocks));
        nodes(vec![element("span").add("Held by ").add(name).add(blocks)])
    });
    let others = holders.get(MAX_HOLDERS..).and_then(describe_other_holders);
    let others = others.map(|others| nodes(format!("Held by {others}")));
    let unresolved = describe_unresolved(coverage).map(|why| nodes(format!("Holder unknown: {why}")));
    Some(list("holders", shown.chain(others).chain(unresolved)))
}

/// The live bytes of the leak over the run; `None` for memory that is not in the table of blocks,
/// or at call sites that the page lacks.
fn curve(leak: &Leak, trace: &CardTrace<'_>) -> Option<Element> {
    let device = trace.device_index(leak.device).filter(|index| trace.devices[*index].has_torch)?;
    let wanted: Vec<&Site> = match (leak.members.as_slice(), &leak.leaf) {
        ([], leaf) => vec![leaf.as_ref().unwrap_or(&leak.site)],
        (members, _) => members.iter().collect(),
    };
    let indices: Vec<usize> = wanted.iter().filter_map(|site| Some(trace.site(site)?.index)).collect();
    let first = *indices.first().filter(|_| leak.kind == LeakKind::Tensors)?;
    let what = match wanted.len() {
        1 => "this call site".to_owned(),
        several => format!("its {}", format_count(several as u64, "call site")),
    };
    let missing = match wanted.len() - indices.len() {
        0 => String::new(),
        missing => format!(", without {missing} that the page lacks"),
    };
    let caption = format!("Live bytes of {what}{missing}");
    let color = trace.site(&leak.site).map_or(first, |site| site.index);
    let chart = json!({ "device": device, "sites": indices, "color": color, "caption": caption });
    let figure = element("figure").class("leak-curve");
    Some(
        figure
            .add(element("figcaption").class("muted").add(caption))
            .add(element("div").holds(chart).add(paragraph("Computing...").class("muted"))),
    )
}

/// Where the memory is allocated.
fn places(leak: &Leak, trace: &CardTrace<'_>) -> Element {
    let code = |site: &Site| site_link(site, leak, trace);
    let leaf = leak
        .leaf
        .as_ref()
        .map(|leaf| paragraph("Innermost call site: ").add(code(leaf)).add(describe_leaf(leak)));
    let calls = leak.backward_calls.iter().map(|call| {
        paragraph("Allocated by autograd threads during backward() at ").add(code(call)).add(".")
    });
    let (verb, mostly) = match leak.kind {
        LeakKind::Reserved => ("Requested", "Mostly requested at"),
        LeakKind::Tensors if leak.shape == LeakShape::RetainedGraph => ("Allocated", "Mostly allocated at"),
        LeakKind::Tensors | LeakKind::Device | LeakKind::PinnedHost => ("Allocated", "Allocated at"),
    };
    element("div")
        .class("places")
        .add(leaf)
        .add(calls.collect::<Vec<_>>())
        .add(members(leak, verb, trace))
        .add(stack_list(mostly, &leak.site))
}

/// A click shows the blocks of the call site that were allocated in the run and not freed.
fn site_link(site: &Site, leak: &Leak, trace: &CardTrace<'_>) -> Element {
    trace.site_link(site, leak.device, SiteBlocks::Kept)
}

fn members(leak: &Leak, verb: &str, trace: &CardTrace<'_>) -> Option<Element> {
    let count = format_count(leak.members.len() as u64, "call site");
    let shown = leak.members.iter().take(MAX_MEMBERS);
    let names = shown.map(|site| site_link(site, leak, trace));
    let more = leak.members.len().checked_sub(MAX_MEMBERS).filter(|more| *more > 0);
    let more = more.map(|more| element("span").add(format!("{} more", format_number(more as u64))));
    let title = element("summary").add(format!("{verb} at {count}"));
    (!leak.members.is_empty()).then(|| element("details").add(title).add(list("members", names.chain(more))))
}

fn links(leak: &Leak, trace: &CardTrace<'_>) -> Element {
    let site = trace.site(&leak.site).map(|_| &leak.site.id);
    let change = json!({ "trace": trace.page_trace, "site": site });
    let options = json!({ "flame.mode": "kept", "flame.zoom": site.map(|_| "site").unwrap_or_default() });
    let kept = json!({ "trace": trace.page_trace, "site": site, "options": options });
    element("div")
        .class("case-links")
        .add(view_button("Show in timeline", "timeline", &change))
        .add(view_button("Show what is kept in the flame graph", "flame", &kept))
}
