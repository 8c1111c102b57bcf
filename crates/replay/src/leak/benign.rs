//! Reports sites that hold more than they did and are not leaks, with the rule that applies.
//!
//! The rules are those of [`crate::leak::growth`], and three more that the blocks themselves show:
//! * *library_workspace*: every block has the size of PyTorch's workspace for a cuBLAS handle.
//!   There is one for each thread and stream that multiplies matrices.
//! * *optimizer_state*: allocated below an optimizer's `step`, a few times at most.
//! * *ratchet*: the number of blocks is stable and their size rises now and then, as for a buffer
//!   that is reallocated for the longest batch so far.
//!
//! The Python suite's `test_leaks.py` checks the rules against real PyTorch programs.

use crate::leak::candidate::BenignCandidate;
use crate::leak::growth::GrowthRule;
use crate::leak::report::LeakReporter;
use crate::report::{BenignGrowth, BenignRule};

/// Bytes of PyTorch's cuBLAS workspace: two buffers of 4 MiB and eight of 16 KiB, or 32 MiB from
/// Hopper on.
const WORKSPACE_BYTES: [u64; 2] = [8_519_680, 32 << 20];
/// Sites listed per live set, largest first.
const MAX_LISTED: usize = 50;

/// Turns benign candidates into rows of the report, most bytes first.
pub(super) fn report_benign(
    reporter: &LeakReporter<'_>,
    candidates: &[BenignCandidate],
) -> Vec<BenignGrowth> {
    let mut largest: Vec<&BenignCandidate> =
        candidates.iter().filter(|candidate| candidate.held.bytes > 0).collect();
    largest.sort_by_key(|candidate| (std::cmp::Reverse(candidate.held.bytes), candidate.site));
    let row = |candidate: &BenignCandidate| BenignGrowth {
        trace: reporter.trace,
        device: u32::from(reporter.ordinal),
        kind: reporter.kind,
        site: reporter.analysis.symbols.site(candidate.site, None),
        rule: name_rule(reporter, candidate),
        bytes: candidate.held.bytes,
        blocks: candidate.held.blocks,
    };
    largest.into_iter().take(MAX_LISTED).map(row).collect()
}

fn name_rule(reporter: &LeakReporter<'_>, candidate: &BenignCandidate) -> BenignRule {
    let BenignCandidate { rule, held, is_by_size, stack, .. } = *candidate;
    let is_workspace = |size: &u64| held.blocks > 0 && held.blocks.checked_mul(*size) == Some(held.bytes);
    let symbols = &reporter.analysis.symbols;
    let is_below_optimizer = || stack.is_some_and(|stack| symbols.stack_info(stack).optimizer != 0);
    match rule {
        GrowthRule::TooEarly => BenignRule::TooEarly,
        GrowthRule::OneModelCall => BenignRule::OneModelCall,
        GrowthRule::SetUp => BenignRule::SetUp,
        GrowthRule::Released => BenignRule::Released,
        GrowthRule::Replaced => BenignRule::Replaced,
        _ if WORKSPACE_BYTES.iter().any(is_workspace) => BenignRule::LibraryWorkspace,
        GrowthRule::WarmUp | GrowthRule::OneOff if is_below_optimizer() => BenignRule::OptimizerState,
        GrowthRule::OneOff | GrowthRule::Saturating if is_by_size => BenignRule::Ratchet,
        GrowthRule::WarmUp => BenignRule::WarmUp,
        GrowthRule::OneOff => BenignRule::OneOff,
        GrowthRule::Saturating => BenignRule::Saturating,
    }
}
