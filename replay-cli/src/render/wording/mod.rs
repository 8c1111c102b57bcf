//! The sentences of all outputs, made from the typed values of the analyses.
//!
//! The analyses leave `summary`, `why`, `action`, `reason`, `remedy` and `message` empty.
//! `fill_report`, [`fill_comparison`] and [`fill_check`] write them, before a document is
//! rendered. Each sentence depends on its own value, the trace it belongs to and the ranks, and
//! not on lists that a filter may shorten. `no_sentence_is_empty` in `tests/wording.rs` checks all
//! outputs.

pub(crate) mod assessment;
mod budget_file;
pub(crate) mod categories;
mod check;
pub(crate) mod comparison;
pub(crate) mod end_levels;
pub(crate) mod fragmentation;
pub(crate) mod leaks;
mod losses;
pub(crate) mod moment;
pub(crate) mod notes;
pub(crate) mod oom;
mod opaque_pools;
pub(crate) mod ranks;
pub(crate) mod recording;
pub(crate) mod sites;
pub(crate) mod steps;
pub(crate) mod verdicts;
mod vocabulary;
pub(crate) mod whatif;

use gpumemtrace_multirun::RankComparison;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::budget::BudgetCheck;
use gpumemtrace_replay::compare::Comparison;
use gpumemtrace_replay::report::{TraceLoss, Worded};

pub(crate) use budget_file::write_budget_file;
pub(crate) use check::contributor_name;
pub(crate) use comparison::{explain_unknown_amplification, name_total};
pub(crate) use losses::describe_loss;
pub(crate) use notes::is_caveat;
pub(crate) use vocabulary::{Vocabulary, alloc_conf_of};

/// Writes all sentences of a report. Native sites must have names by then.
pub(super) fn fill_report(report: &mut Report) {
    for info in &mut report.traces {
        fill_losses(&mut info.incomplete);
        let words = Vocabulary::of_trace(info);
        for note in &mut info.notes {
            note.message = notes::describe_note(&note.fact, &words);
        }
    }
    let words: Vec<Vocabulary> = report.traces.iter().map(Vocabulary::of_trace).collect();
    for oom in report.oom.iter_mut().flatten() {
        let words = &words[oom.trace];
        oom.why = oom::explain_oom(oom, words);
        for remedy in &mut oom.remedies {
            remedy.action = oom::describe_remedy(remedy, words);
        }
    }
    for assessment in report.leak_assessment.iter_mut().flatten() {
        assessment::fill_assessment(assessment);
    }
    let summaries: Vec<String> =
        report.verdicts.iter().flatten().map(|verdict| verdicts::summarize(verdict, report)).collect();
    for (verdict, summary) in report.verdicts.iter_mut().flatten().zip(summaries) {
        verdict.summary = summary;
    }
}

/// Writes all sentences of a comparison.
pub(crate) fn fill_comparison(comparison: &mut Comparison) {
    for run in &mut comparison.runs {
        fill_losses(&mut run.incomplete);
    }
    for note in &mut comparison.notes {
        note.message = comparison::describe_note(note.fact);
    }
    for quantity in comparison.across_backends.iter_mut().flat_map(|across| &mut across.not_comparable) {
        quantity.message = comparison::explain_incomparable(quantity.fact);
    }
}

/// Writes all sentences of a comparison of ranks.
pub(crate) fn fill_rank_comparison(ranks: &mut RankComparison) {
    for note in &mut ranks.notes {
        note.note.message = comparison::describe_note(note.note.fact);
    }
}

/// Writes all sentences of a check.
pub(crate) fn fill_check(check: &mut BudgetCheck) {
    fill_losses(&mut check.incomplete);
    for why in check.budgets.iter_mut().filter_map(|limit| limit.why.as_mut()) {
        why.message = check::explain_unknown(why.fact);
    }
}

/// A clause as a sentence: with a capital, unless it begins with the name of a file, and a full
/// stop.
pub(crate) fn sentence(clause: &str) -> String {
    let mut chars = clause.chars();
    let first = clause.split(' ').next().unwrap_or_default();
    let is_name = first.trim_end_matches(['.', ',', ':']).contains(['.', ':', '/', '_', '(']);
    let first = chars.next().into_iter();
    let capital: String =
        if is_name { first.collect() } else { first.flat_map(char::to_uppercase).collect() };
    let end = if clause.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{capital}{}{end}", chars.as_str())
}

fn fill_losses(losses: &mut [Worded<TraceLoss>]) {
    for loss in losses {
        loss.message = describe_loss(&loss.fact);
    }
}
