//! The smallest card for each setting, as a table.

use std::collections::{BTreeMap, BTreeSet};

use gpumemtrace_whatif::{KnownCard, MoreNeeded, PredictionStatus, WhatIfAnswer, WhatIfRow};

use super::whatif::{describe_base, describe_failure, describe_run, describe_setting};
use crate::render::wording::whatif::describe_more;
use crate::terminal::format::{format_number, put_line, size_column};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;
use crate::terminal::units::{Units, chosen_units, format_bytes};

/// A header, then a row for each setting with its smallest card.
pub(super) fn render_fit(answer: &WhatIfAnswer, style: Style) -> String {
    let mut out = String::new();
    put_line(&mut out, format_args!("{}", style.bold(&describe_run(answer))));
    put_line(&mut out, format_args!("  {HANG}{}", describe_base(answer)));
    if answer.base.status == PredictionStatus::Refused {
        render_least(&mut out, answer);
        return layout::finish_text(&out, style);
    }
    out.push('\n');
    let width = chosen_units().columns();
    let card = if answer.may_need_more.is_empty() { "smallest card" } else { "at least" };
    let title = format!("  {card:>14}  {:>width$}  {:>8}  setting", "reserved", "retries");
    put_line(&mut out, format_args!("{}", style.bold(&title)));
    for row in &answer.rows {
        if row.ooms == 0 && row.status != PredictionStatus::Refused {
            render_smallest(&mut out, row, answer, style);
        } else if !answer.rows.iter().any(|other| other.setting == row.setting && other.ooms == 0) {
            render_none(&mut out, row, answer, style);
        } else {
            render_too_small(&mut out, row, answer);
        }
    }
    render_reasons(&mut out, answer);
    render_known_cards(&mut out, answer);
    layout::finish_text(&out, style)
}

fn render_smallest(out: &mut String, row: &WhatIfRow, answer: &WhatIfAnswer, style: Style) {
    let known =
        |bytes: Option<u64>, text: fn(u64) -> String| bytes.map_or_else(|| "unknown".to_owned(), text);
    let line = format_args!(
        "  {:>14}  {}  {:>8}  {HANG}{}",
        known(row.card_bytes, format_card),
        known(row.peak_reserved_bytes, size_column),
        format_number(row.retries),
        describe_name(row, answer, style)
    );
    put_line(out, line);
}

/// The size of a card. In GiB, two digits after the point could round to a card that is too small.
fn format_card(bytes: u64) -> String {
    match chosen_units() {
        Units::Auto => Units::MiB.text(bytes),
        units => units.text(bytes),
    }
}

/// What fails on the largest card that is too small.
fn render_too_small(out: &mut String, row: &WhatIfRow, answer: &WhatIfAnswer) {
    let works = answer.rows.iter().find(|other| other.setting == row.setting && other.ooms == 0);
    let less = works.and_then(|works| works.card_bytes?.checked_sub(row.card_bytes?));
    if let Some((less, failure)) = less.zip(row.first_failure.as_ref()) {
        let failure = describe_failure(failure, answer.steps.is_some());
        put_line(out, format_args!("      {HANG}with {} less, {failure}", format_bytes(less)));
    }
}

/// A setting without a card.
fn render_none(out: &mut String, row: &WhatIfRow, answer: &WhatIfAnswer, style: Style) {
    let name = describe_name(row, answer, style);
    let why = match (row.status, &row.first_failure) {
        (PredictionStatus::Refused, _) => "not predicted".to_owned(),
        (_, Some(failure)) => describe_failure(failure, answer.steps.is_some()),
        (_, None) => "out of memory".to_owned(),
    };
    put_line(out, format_args!("  {:>14}  {HANG}{name}: {why}", "none"));
}

/// Why rows are not exact, unless the recorded run has the same reason.
fn render_reasons(out: &mut String, answer: &WhatIfAnswer) {
    let reason = |row: &WhatIfRow| row.reason.clone().filter(|_| row.reason != answer.base.reason);
    let reasons: BTreeSet<String> = answer.rows.iter().filter_map(reason).collect();
    for why in reasons {
        let rows = answer.rows.iter().filter(|row| row.reason.as_ref() == Some(&why));
        let mut names: Vec<String> = rows.map(|row| plain_name(row, answer)).collect();
        names.dedup();
        let settings: BTreeSet<&str> = answer.rows.iter().map(|row| row.setting.as_str()).collect();
        let which = if names.len() == settings.len() { "all settings".to_owned() } else { names.join(", ") };
        put_line(out, format_args!("  Indicative, because {why}: {HANG}{which}"));
    }
}

/// The smallest known card, with the settings that need no larger one.
fn render_known_cards(out: &mut String, answer: &WhatIfAnswer) {
    let mut settings_of_card: BTreeMap<u64, (&str, Vec<String>)> = BTreeMap::new();
    for row in answer.rows.iter().filter(|row| row.ooms == 0) {
        if let Some(card) = row.card_bytes.and_then(KnownCard::smallest_with) {
            let (_, settings) = settings_of_card.entry(card.total_bytes).or_insert((card.name, Vec::new()));
            settings.push(plain_name(row, answer));
        }
    }
    if settings_of_card.is_empty() {
        return;
    }
    out.push('\n');
    let cards = settings_of_card.values().map(|(name, settings)| match settings_of_card.len() {
        1 => (*name).to_owned(),
        _ => format!("{name} with {}", settings.join(" or ")),
    });
    let cards = cards.collect::<Vec<_>>().join("; ");
    if answer.base.ooms > 0 {
        let text = "on which the request that failed gets memory";
        put_line(out, format_args!("Smallest known card {text}: {HANG}{cards}"));
        put_line(
            out,
            format_args!("  {HANG}The run may need a larger one: what follows that request is unknown."),
        );
        return;
    }
    if answer.may_need_more.is_empty() {
        put_line(out, format_args!("Smallest known card that holds the run: {HANG}{cards}"));
        return;
    }
    let is_in_part = |more: &MoreNeeded| matches!(more, MoreNeeded::StartedLate | MoreNeeded::Incomplete);
    let what = if answer.may_need_more.iter().any(is_in_part) {
        "the recorded part of the run"
    } else {
        "PyTorch's memory in the run"
    };
    put_line(out, format_args!("Smallest known card that holds {what}: {HANG}{cards}"));
    let reasons: Vec<&str> = answer.may_need_more.iter().map(|more| describe_more(*more)).collect();
    put_line(out, format_args!("  {HANG}The run may need a larger one: {}.", reasons.join("; ")));
    render_least(out, answer);
}

/// The lower bound on the card's memory.
fn render_least(out: &mut String, answer: &WhatIfAnswer) {
    if let Some(bytes) = answer.least_card_bytes {
        let bytes = format_bytes(bytes);
        let text = "holds the run: that much was allocated at once.";
        put_line(out, format_args!("  {HANG}No card with less than {bytes} {text}"));
    }
}

fn plain_name(row: &WhatIfRow, answer: &WhatIfAnswer) -> String {
    let unbound = WhatIfRow { card_bytes: answer.base.card_bytes, ..row.clone() };
    describe_setting(&unbound, &answer.base)
}

fn describe_name(row: &WhatIfRow, answer: &WhatIfAnswer, style: Style) -> String {
    let name = plain_name(row, answer);
    if row.setting == answer.base.setting { format!("recorded: {name}") } else { style.bold(&name) }
}
