//! What was not compared and why, as phrases without a full stop.

use gpumemtrace_replay::compare::{AmplificationGap, ComparisonNote, Incomparable};

/// One note of a comparison.
pub(super) fn describe_note(note: ComparisonNote) -> String {
    match note {
        ComparisonNote::StepSourcesDiffer { before, after } => format!(
            "steps were not compared: the first run finds them by {}, the second by {}",
            before.name(),
            after.name()
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
