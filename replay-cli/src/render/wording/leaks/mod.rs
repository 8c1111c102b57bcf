//! Leaks, growth that is no leak, and their holders, as phrases.

pub(crate) mod benign;
pub(crate) mod explanation;
pub(crate) mod growth;
pub(crate) mod holders;

use gpumemtrace_replay::report::{
    BenignRule, GrowsBy, Leak, LeakKind, LeakShape, ScanTrigger, UnresolvedReason,
};

use super::Vocabulary;

/// How certain a leak is, and which memory grows: the begin of its headline.
pub(crate) fn label_leak(kind: LeakKind, grows_by: GrowsBy, is_regular: bool) -> String {
    let memory = match kind {
        LeakKind::Tensors | LeakKind::Device | LeakKind::PinnedHost => name_leaking_memory(kind),
        LeakKind::Reserved => return "Growing unused reserved memory".to_owned(),
    };
    match (grows_by, is_regular) {
        (GrowsBy::Size, _) => format!("Growing blocks{memory}"),
        (GrowsBy::Blocks, true) => format!("Likely leak{memory}"),
        (GrowsBy::Blocks, false) => format!("Possible leak{memory} (or a cache that is still filling)"),
    }
}

/// The memory that leaks, behind an amount; empty for tensors.
pub(crate) fn name_leaking_memory(kind: LeakKind) -> &'static str {
    match kind {
        LeakKind::Tensors => "",
        LeakKind::Device => " of driver memory",
        LeakKind::PinnedHost => " of pinned host memory",
        LeakKind::Reserved => " of unused reserved memory",
    }
}

/// How certain it is that an autograd graph is retained; `None` for leaks of other shapes.
pub(crate) fn name_graph(leak: &Leak) -> Option<&'static str> {
    match leak.shape {
        LeakShape::RetainedGraph if leak.is_held_by_graph() => Some("Retained autograd graph"),
        LeakShape::RetainedGraph => Some("Probably a retained autograd graph"),
        LeakShape::Linear | LeakShape::Accelerating => None,
    }
}

/// What a leak consists of.
pub(crate) fn name_leaked_item(kind: LeakKind, words: &Vocabulary) -> &'static str {
    match kind {
        LeakKind::Tensors | LeakKind::Device | LeakKind::PinnedHost => "block",
        LeakKind::Reserved => words.segment,
    }
}

/// Which growth is no leak, behind a number of bytes.
fn describe_benign_rule(rule: BenignRule) -> &'static str {
    match rule {
        BenignRule::WarmUp => "allocated in the first steps",
        BenignRule::OneOff => "that grew only a few times",
        BenignRule::OneModelCall => "kept by one call of a model",
        BenignRule::SetUp => "allocated in one go, before other work",
        BenignRule::Released => "freed again before the end",
        BenignRule::Replaced => "in place of other memory that was freed",
        BenignRule::Saturating => "in caches that grow more slowly, or no more",
        BenignRule::Ratchet => "in buffers sized for the longest batch so far",
        BenignRule::OptimizerState => "of optimizer state",
        BenignRule::LibraryWorkspace => "of cuBLAS workspaces",
        BenignRule::TooEarly => "that grew for too few steps to judge",
    }
}

/// Why no holder of some blocks is known.
fn explain_unresolved(why: UnresolvedReason) -> &'static str {
    match why {
        UnresolvedReason::NoTensor => "no Python tensor uses them",
        UnresolvedReason::Frozen => {
            "no variable leads to their tensors, or gc.freeze() hides the objects that have them"
        }
        UnresolvedReason::NoName => "no variable leads to their tensors",
        UnresolvedReason::SavedUnread => {
            "possibly saved in autograd graphs, which this PyTorch version hides"
        }
        UnresolvedReason::OutOfTime => "the scan reached its time limit",
        UnresolvedReason::NotSearched => "too many blocks to search",
        UnresolvedReason::NotListed => "held by further names",
        UnresolvedReason::Unreadable => "the name in the trace is unreadable",
    }
}

/// When a holder scan ran.
pub(crate) fn describe_trigger(trigger: Option<ScanTrigger>) -> &'static str {
    match trigger {
        Some(ScanTrigger::Interval) => "during the run",
        Some(ScanTrigger::Return) => "when the main function returned",
        Some(ScanTrigger::Exit) => "at exit",
        Some(ScanTrigger::Oom) => "when memory ran out",
        Some(ScanTrigger::Signal) => "on a signal",
        Some(ScanTrigger::Call) => "when the program called holders()",
        None => "at an unknown time",
    }
}
