//! Growth that is not known to be a leak: one card each, and what does not count as a leak.

use gpumemtrace_replay::report::GrowingSite;

use super::element::{Element, Node, element};
use super::{CardTrace, SiteBlocks, case, held_by, leaks, nodes, paragraph};
use crate::render::wording::assessment::{amount_of_growth, explain_growth, find_assessment};
use crate::render::wording::leaks::benign::describe_benign_growth;
use crate::render::wording::leaks::growth::{describe_growth, describe_possible_forecast};
use crate::render::wording::leaks::holders::{describe_scan, format_holder, last_scan};

/// A title and a card for each call site that grows.
pub(super) fn cards(trace: &CardTrace<'_>) -> Vec<Node> {
    let growth = find_assessment(trace.report, trace.trace).map(|assessment| &assessment.growth);
    let cards: Vec<Element> = growth.into_iter().flatten().map(|growth| growth_card(growth, trace)).collect();
    let title = element("h2").class("section-title").add("Growth not known to be a leak");
    let mut all = nodes((!cards.is_empty()).then_some(title));
    all.extend(nodes(cards));
    all
}

fn growth_card(growth: &GrowingSite, trace: &CardTrace<'_>) -> Element {
    let (label, text) = amount_of_growth(growth);
    let link = trace.site_link(&growth.site, growth.device, SiteBlocks::Kept);
    let title = element("h2").class("case-title").add(format!("{text} at ")).add(link);
    let card = case("article", "warning").add(paragraph(label).class("badge")).add(title);
    let card = card.add(trace.source(&growth.site));
    let Some(finding) = growth.finding.as_deref() else {
        let holder = growth.holders.as_ref().and_then(|holders| holders.first());
        return card
            .add(paragraph(explain_growth(growth)))
            .add(holder.map(|holder| held_by(&format_holder(holder))));
    };
    let forecast = describe_possible_forecast(finding).unwrap_or_default();
    let growth = paragraph(format!("{}. {} ", describe_growth(finding), explain_growth(growth)))
        .add(element("strong").add(forecast));
    leaks::add_details(card, element("div").add(growth), finding, trace)
}

/// The last holder scan, and growth that does not count as a leak.
pub(super) fn footer(trace: &CardTrace<'_>) -> Option<Element> {
    let scan = last_scan(trace.report, trace.trace).map(|scan| paragraph(describe_scan(scan)));
    let benign = describe_benign_growth(trace.report, trace.trace);
    let benign = benign.map(|benign| paragraph(format!("Not counted as leaks: {benign}.")));
    let has_any = scan.is_some() || benign.is_some();
    has_any.then(|| element("div").class("card muted").add(scan).add(benign))
}
