//! What was compared, and what was not and why, as phrases without a full stop.

use gpumemtrace_replay::compare::{
    AmplificationGap, ChangeStatus, ComparisonNote, Incomparable, LineChange, TotalQuantity,
};

use super::Vocabulary;
use super::fragmentation::name_cause;
use super::steps::name_step_source;
use crate::terminal::format::{format_count, format_number};
use crate::terminal::units::format_bytes;

/// One note of a comparison.
pub(super) fn describe_note(note: ComparisonNote) -> String {
    match note {
        ComparisonNote::StepSourcesDiffer { before, after } => format!(
            "steps were not compared: step boundaries are {} in the first run, {} in the second",
            name_step_source(before),
            name_step_source(after)
        ),
        ComparisonNote::NoSteps => "no steps were found: the runs were compared as a whole".to_owned(),
        ComparisonNote::NoStepsInRun { run } => {
            let run = if run == 0 { "first" } else { "second" };
            format!("steps were not compared: the {run} run has none")
        }
        ComparisonNote::LeaksNotCompared { before, after } => format!(
            "leaks were not compared: without steps they depend on times ({before} in the first run, {after} in the second)"
        ),
    }
}

/// How a call site or a leak changed.
pub(crate) fn status_word(status: ChangeStatus) -> &'static str {
    match status {
        ChangeStatus::Appeared => "new",
        ChangeStatus::Grew => "grew",
        ChangeStatus::Changed => "changed",
        ChangeStatus::Shrank => "shrank",
        ChangeStatus::Disappeared => "gone",
        ChangeStatus::Unjudged => "not judged",
    }
}

/// `+4.00 MiB`, `-3`; `=` for no change.
pub(crate) fn format_change(change: i64, is_bytes: bool) -> String {
    let amount = change.unsigned_abs();
    let amount = if is_bytes { format_bytes(amount) } else { format_number(amount) };
    match change {
        0 => "=".to_owned(),
        1.. => format!("+{amount}"),
        _ => format!("-{amount}"),
    }
}

/// ` (was line 38)`; `None` for a call site on the same line, or in one run only.
pub(crate) fn describe_move(line: &LineChange) -> Option<String> {
    let before = line.before.as_ref()?.line?;
    let is_moved = line.site()?.line != Some(before);
    is_moved.then(|| format!(" (was line {before})"))
}

/// `different allocations in 3 steps`, of a line of which all listed amounts are equal.
pub(crate) fn describe_unlisted_difference(line: &LineChange) -> Option<String> {
    let by_steps = [line.bytes_per_step, line.allocations_per_step];
    let listed = [line.at_peak_bytes, line.retained_bytes].into_iter().chain(by_steps.into_iter().flatten());
    let mut listed = listed.map(|change| change.change);
    let steps = line.steps_that_differ.filter(|_| listed.all(|change| change == 0))?;
    Some(format!("different allocations in {}", format_count(steps, "step")))
}

/// Why a quantity cannot be compared across backends.
pub(super) fn explain_incomparable(quantity: Incomparable) -> String {
    match quantity {
        Incomparable::Peaks => {
            "peaks and retained bytes: CUDA's are of tensors, Metal's of buffers, which PyTorch keeps for reuse"
        }
        Incomparable::Allocations => {
            "allocations: Metal records new buffers only, not tensors that reuse one"
        }
        Incomparable::CallSites => {
            "call sites: a Metal buffer has the call site of its first tensor; a later tensor that reuses it may leak"
        }
        Incomparable::Rounding => "rounding: Metal traces do not contain requested sizes",
        Incomparable::TensorBytes => {
            "tensor bytes on Metal: PyTorch was never sampled (gpumemtrace.step() samples it)"
        }
    }
    .to_owned()
}

/// Why an amplification is unknown.
pub(crate) fn explain_unknown_amplification(why: AmplificationGap) -> &'static str {
    match why {
        AmplificationGap::NoSteps => "no steps were found",
        AmplificationGap::TooFewSteps => "too few steps",
        AmplificationGap::ReservedUnknown => "reserved bytes are unknown",
        AmplificationGap::NoLeak => "no leak was found",
        AmplificationGap::NoLeakGrowth => "the leaking call sites did not grow over these steps",
        AmplificationGap::NothingReserved => {
            "nothing new was reserved: the leak used memory that was already reserved"
        }
    }
}

/// The name of a quantity, with the nouns of the two runs' backends. Parts of a quantity are
/// indented.
pub(crate) fn name_total(quantity: &TotalQuantity, runs: &[Vocabulary; 2]) -> String {
    let is_metal = runs.iter().any(|words| words.is_metal);
    let is_mixed = is_metal && runs.iter().any(|words| !words.is_metal);
    match quantity {
        TotalQuantity::Steps => "steps",
        TotalQuantity::Ooms => "out-of-memory errors",
        TotalQuantity::PeakLive if is_mixed => "peak allocated, or in buffers",
        TotalQuantity::PeakLive => "peak allocated",
        TotalQuantity::PeakReserved if is_mixed => "peak reserved, or in heaps",
        TotalQuantity::PeakReserved if is_metal => "peak of Metal heaps",
        TotalQuantity::PeakReserved => "peak reserved",
        TotalQuantity::Gap => "unused reserved",
        TotalQuantity::GapCause(cause) => return format!("  {}", name_cause(*cause, &runs[0])),
        TotalQuantity::PeakDevice if is_mixed => "peak driver memory, or Metal",
        TotalQuantity::PeakDevice if is_metal => "peak of Metal",
        TotalQuantity::PeakDevice => "peak driver memory",
        TotalQuantity::HeldBy(owner) => return format!("  {owner}"),
        TotalQuantity::Retained => "allocated at end of last step",
        TotalQuantity::PeakPerStep => "peak of a step",
        TotalQuantity::BytesPerStep => "allocated per step",
        TotalQuantity::AllocationsPerStep => "allocations per step",
    }
    .to_owned()
}
