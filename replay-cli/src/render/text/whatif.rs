//! Predictions as a table, the best first.

use std::collections::{BTreeMap, BTreeSet};

use gpumemtrace_whatif::{
    FailedRequest, FailedWhat, PredictionStatus, UnusedByCause, WhatIfAnswer, WhatIfRow,
};

use crate::render::wording::alloc_conf_of;
use crate::render::wording::sites::short_site;
use crate::render::wording::whatif::{describe_range, describe_unused};
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_number, put_line, size_column};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;
use crate::terminal::units::{chosen_units, format_bytes};

/// One answer after another, and the setting that suits all traces.
pub(super) fn render_answers(answers: &[WhatIfAnswer], style: Style) -> String {
    let texts: Vec<String> = answers.iter().map(|answer| render_answer(answer, style)).collect();
    let mut out = texts.join("\n");
    if answers.len() > 1 {
        let mut last = String::new();
        put_line(&mut last, format_args!("{HANG}{}", describe_common_best(answers, style)));
        out.push('\n');
        out.push_str(&layout::finish_text(&last, style));
    }
    out
}

/// The setting that keeps the largest peak of all traces lowest.
fn describe_common_best(answers: &[WhatIfAnswer], style: Style) -> String {
    let recorded: Option<Vec<u64>> = answers.iter().map(|answer| answer.base.peak_reserved_bytes).collect();
    let Some(recorded_bytes) = recorded.and_then(|peaks| peaks.into_iter().max()) else {
        return "There is no prediction for all traces together, because one of them has none.".to_owned();
    };
    let rows = answers.iter().flat_map(|answer| &answer.rows);
    let settings: BTreeSet<&str> = rows.map(|row| row.setting.as_str()).collect();
    let of_all = |setting: &&str| {
        let peaks: Option<Vec<u64>> = answers.iter().map(|answer| peak_with(answer, setting)).collect();
        Some((peaks?.into_iter().max()?, (*setting).to_owned()))
    };
    let best = settings.iter().filter_map(of_all).min().filter(|(bytes, _)| *bytes < recorded_bytes);
    let traces = format_count(answers.len() as u64, "trace");
    let Some((bytes, setting)) = best else {
        return format!("No setting that was tried for all {traces} lowers the largest of their peaks.");
    };
    let name = match setting.as_str() {
        "" => "PyTorch's defaults".to_owned(),
        setting => assign_setting(&answers[0].base, setting),
    };
    let (bytes, recorded) = (format_bytes(bytes), format_bytes(recorded_bytes));
    format!("With {}, the largest of {traces} reserves {bytes} instead of {recorded}.", style.bold(&name))
}

/// The most that a run reserves with this setting on its own card, if it runs to its end.
fn peak_with(answer: &WhatIfAnswer, setting: &str) -> Option<u64> {
    let base = &answer.base;
    let is_same_run = |row: &&WhatIfRow| (&row.torch, row.card_bytes) == (&base.torch, base.card_bytes);
    let mut rows = answer.rows.iter().chain([base]).filter(is_same_run);
    rows.find(|row| row.setting == setting && row.ooms == 0)?.peak_reserved_bytes
}

/// A header, the recorded run, then a row for each prediction.
fn render_answer(answer: &WhatIfAnswer, style: Style) -> String {
    let mut out = String::new();
    let base = &answer.base;
    put_line(&mut out, format_args!("{}", style.bold(&describe_run(answer))));
    put_line(&mut out, format_args!("  {HANG}{}", describe_base(answer)));
    if base.status == PredictionStatus::Refused {
        return layout::finish_text(&out, style);
    }
    out.push('\n');
    let (same, different): (Vec<&WhatIfRow>, Vec<&WhatIfRow>) =
        answer.rows.iter().partition(|row| has_no_effect(row, base));
    render_rows(&mut out, answer, &different, style);
    render_unused(&mut out, base, &different);
    render_same(&mut out, &same, base);
    render_reasons(&mut out, answer);
    render_best(&mut out, answer, style);
    layout::finish_text(&out, style)
}

pub(super) fn describe_run(answer: &WhatIfAnswer) -> String {
    let base = &answer.base;
    let torch = match &answer.torch_releases {
        Some([oldest, newest]) => format!("{oldest} to {newest} (from the snapshot's keys)"),
        None => base.torch.as_deref().unwrap_or("unknown").to_owned(),
    };
    let card = base
        .card_bytes
        .map_or_else(|| "card unknown".to_owned(), |bytes| format!("card of {}", format_bytes(bytes)));
    format!("{}: GPU {}, PyTorch {}, {card}", escape_text(&answer.path), answer.device, escape_text(&torch))
}

/// Whether the model holds for this run.
pub(super) fn describe_base(answer: &WhatIfAnswer) -> String {
    let base = &answer.base;
    let equal =
        "With the recorded settings, the allocator model reserves what the run reserved, at every request.";
    match (base.status, &base.reason) {
        (PredictionStatus::Exact, _) => {
            format!("{equal} Predictions are exact unless a line below says otherwise.")
        }
        (PredictionStatus::Indicative, Some(reason)) if answer.is_reproduced => {
            format!("{equal} The predictions are indicative, because {reason}.")
        }
        (PredictionStatus::Indicative, Some(reason)) => {
            format!("The predictions are indicative, because {reason}.")
        }
        (_, reason) => format!("There is no prediction, because {}.", reason.as_deref().unwrap_or("unknown")),
    }
}

/// True for settings with which the run would have been the same.
fn has_no_effect(row: &WhatIfRow, base: &WhatIfRow) -> bool {
    let numbers = |row: &WhatIfRow| {
        (row.peak_reserved_bytes, row.end_reserved_bytes, row.retries, row.ooms, row.driver_calls.clone())
    };
    (row.status, &row.reason) == (base.status, &base.reason)
        && (&row.torch, row.card_bytes) == (&base.torch, base.card_bytes)
        && numbers(row) == numbers(base)
}

fn render_rows(out: &mut String, answer: &WhatIfAnswer, rows: &[&WhatIfRow], style: Style) {
    let width = chosen_units().columns();
    let title = format!(
        "  {:>width$}  {:>7}  {:>width$}  {:>8}  {:>12}  setting",
        "reserved", "", "unused", "retries", "driver calls"
    );
    put_line(out, format_args!("{}", style.bold(&title)));
    render_row(out, &answer.base, answer, style);
    let most = style.row_limit(usize::MAX);
    for row in rows.iter().take(most) {
        render_row(out, row, answer, style);
    }
    if let Some(hidden) = rows.len().checked_sub(most).filter(|hidden| *hidden > 0) {
        put_line(out, format_args!("  {}", format_count(hidden as u64, "other setting")));
    }
}

fn render_row(out: &mut String, row: &WhatIfRow, answer: &WhatIfAnswer, style: Style) {
    let base = &answer.base;
    let width = chosen_units().columns();
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| format!("{:>width$}", "unknown"), size_column);
    let calls: u64 = row.driver_calls.values().sum();
    let is_base = std::ptr::eq(row, base);
    let name = describe_setting(row, base);
    put_line(
        out,
        format_args!(
            "  {}  {:>7}  {}  {:>8}  {:>12}  {HANG}{}",
            bytes(row.peak_reserved_bytes),
            describe_change(row, base),
            bytes(row.peak_unused.map(UnusedByCause::sum)),
            format_number(row.retries),
            format_number(calls),
            if is_base { format!("recorded: {name}") } else { style.bold(&name) }
        ),
    );
    if let Some(range) = row.peak_reserved_range {
        put_line(out, format_args!("      {HANG}{}", describe_range(&range)));
    }
    if let Some(failure) = row.first_failure.as_ref().filter(|_| row.ooms > 0) {
        put_line(out, format_args!("      {HANG}{}", describe_failure(failure, answer.steps.is_some())));
    }
}

/// Which request gets no memory.
pub(super) fn describe_failure(failure: &FailedRequest, has_steps: bool) -> String {
    if failure.what == FailedWhat::Start {
        let bytes = format_bytes(failure.request_bytes);
        return format!("out of memory: {bytes} were in use when the recording began");
    }
    let site = failure.site.as_ref().map_or_else(|| "an unknown line".to_owned(), short_site);
    let bytes = format_bytes(failure.request_bytes);
    let step = format_number(u64::from(failure.step));
    let step = if has_steps { format!(" in step {step}") } else { String::new() };
    match failure.what {
        FailedWhat::Library => format!("out of memory{step}: {bytes} requested outside PyTorch at {site}"),
        FailedWhat::Block | FailedWhat::Start => format!("out of memory{step}: {bytes} requested at {site}"),
    }
}

/// `-6.2%`: the peak compared with the recorded one.
fn describe_change(row: &WhatIfRow, base: &WhatIfRow) -> String {
    match (row.peak_reserved_bytes, base.peak_reserved_bytes) {
        // A run that fails needed more.
        (Some(peak), Some(recorded)) if recorded > 0 && peak != recorded && row.ooms == 0 => {
            let sign = if peak < recorded { "-" } else { "+" };
            format!("{sign}{:.1}%", peak.abs_diff(recorded) as f64 / recorded as f64 * 100.0)
        }
        _ => String::new(),
    }
}

/// The setting, and what else differs from the recorded run.
pub(super) fn describe_setting(row: &WhatIfRow, base: &WhatIfRow) -> String {
    let setting = match row.setting.as_str() {
        "" => "PyTorch's defaults".to_owned(),
        setting => escape_text(setting),
    };
    let torch = row.torch.as_deref().filter(|_| row.torch != base.torch);
    let torch = torch.map(|version| format!(", PyTorch {version}")).unwrap_or_default();
    let card = row.card_bytes.filter(|card| Some(*card) != base.card_bytes);
    let card = card.map(|bytes| format!(", card of {}", format_bytes(bytes))).unwrap_or_default();
    format!("{setting}{torch}{card}")
}

/// Why memory is unused at the peak, in the recorded run and in the best other one.
fn render_unused(out: &mut String, base: &WhatIfRow, different: &[&WhatIfRow]) {
    let unused = |row: &WhatIfRow| row.peak_unused.filter(|unused| unused.sum() > 0);
    let best = different.first().copied().filter(|row| row.ooms == 0);
    let rows = [Some(base), best].into_iter().flatten();
    let rows: Vec<_> = rows.filter_map(|row| Some((row, unused(row)?))).collect();
    if !rows.is_empty() {
        out.push('\n');
        put_line(out, format_args!("  Unused at the peak"));
    }
    for (row, unused) in rows {
        let name = if std::ptr::eq(row, base) { "recorded".to_owned() } else { describe_setting(row, base) };
        put_line(out, format_args!("    {HANG}{name}: {}", describe_unused(&unused)));
    }
}

/// One line for all settings that change nothing.
fn render_same(out: &mut String, same: &[&WhatIfRow], base: &WhatIfRow) {
    if same.is_empty() {
        return;
    }
    let names: Vec<String> = same.iter().map(|row| describe_setting(row, base)).collect();
    out.push('\n');
    put_line(out, format_args!("  No effect: {HANG}{}", names.join(", ")));
}

/// Reasons that not all rows share with the recorded run, each with its rows.
fn render_reasons(out: &mut String, answer: &WhatIfAnswer) {
    let mut by_reason: BTreeMap<(bool, &str), Vec<String>> = BTreeMap::new();
    for row in answer.rows.iter().filter(|row| row.reason != answer.base.reason) {
        let key = (row.status == PredictionStatus::Refused, row.reason.as_deref().unwrap_or("unknown"));
        by_reason.entry(key).or_default().push(describe_setting(row, &answer.base));
    }
    for ((is_refused, reason), names) in by_reason {
        let word = if is_refused { "Not predicted" } else { "Indicative" };
        put_line(out, format_args!("  {word}, because {reason}: {HANG}{}", names.join(", ")));
    }
}

/// The setting as a line for the shell, for the version of this row.
fn assign_setting(row: &WhatIfRow, setting: &str) -> String {
    format!("{}={}", alloc_conf_of(row.torch.as_deref().unwrap_or_default()), escape_text(setting))
}

/// The setting that needs the least memory, if one needs less than the recorded run.
fn render_best(out: &mut String, answer: &WhatIfAnswer, style: Style) {
    let base = &answer.base;
    let Some(best) =
        answer.rows.first().filter(|row| (&row.torch, row.card_bytes) == (&base.torch, base.card_bytes))
    else {
        return;
    };
    let saved = base.peak_reserved_bytes.zip(best.peak_reserved_bytes);
    let saved = saved.and_then(|(recorded, peak)| recorded.checked_sub(peak)).filter(|saved| *saved > 0);
    let Some(saved) = saved.filter(|_| best.ooms == 0 && best.status != PredictionStatus::Refused) else {
        return;
    };
    out.push('\n');
    let name = match best.setting.as_str() {
        "" => describe_setting(best, base),
        setting => assign_setting(best, setting),
    };
    put_line(out, format_args!("{} {HANG}reserves {} less.", style.bold(&name), format_bytes(saved)));
}
