//! What holds more than it did and is no leak, with the rule that says so.
//!
//! The rules are those of [`crate::leak::growth`], told apart further by what the blocks are:
//! * *library_workspace*: each block is as large as what PyTorch takes for a cuBLAS handle: 8,519,680 bytes (two of 4 MiB and
//!   eight of 16 KiB), or 32 MiB from Hopper on. One comes for each thread and stream that multiplies matrices.
//! * *optimizer_state*: allocated below an optimizer's `step`, and not again.
//! * *ratchet*: as many blocks as before, larger ones, seldom: made anew for the longest batch so far.

use crate::leak::candidates::BenignCandidate;
use crate::leak::growth::GrowthRule;
use crate::pass::Analysis;
use crate::report::{BenignGrowth, BenignRule, LeakKind};
use crate::state::live_set::LiveSet;

/// What PyTorch takes for a cuBLAS handle.
const WORKSPACES: [u64; 2] = [8_519_680, 32 << 20];
/// Most sites listed, largest first.
const MAX_LISTED: usize = 50;

/// The report's form of what is silent in a book.
pub(crate) fn report(
    (trace, device, kind): (usize, u8, LeakKind),
    analysis: &Analysis,
    live_set: &LiveSet,
    silent: &[BenignCandidate],
) -> Vec<BenignGrowth> {
    let mut largest: Vec<&BenignCandidate> = silent.iter().filter(|one| one.held.bytes > 0).collect();
    largest.sort_by_key(|one| (std::cmp::Reverse(one.held.bytes), one.site));
    let told = largest.into_iter().take(MAX_LISTED).map(|one| BenignGrowth {
        trace,
        device: u32::from(device),
        kind,
        site: analysis.symbols.site(one.site, None),
        rule: rule(analysis, live_set, one),
        bytes: one.held.bytes,
        blocks: one.held.blocks,
    });
    told.collect()
}

fn rule(analysis: &Analysis, live_set: &LiveSet, silent: &BenignCandidate) -> BenignRule {
    let BenignCandidate { site, rule, held, is_by_size } = *silent;
    let is_workspace = |size: &u64| held.blocks > 0 && held.blocks.checked_mul(*size) == Some(held.bytes);
    let to = live_set.steps_ended().saturating_sub(1);
    let below_optimizer = || {
        let main = live_set.main_stack_of_growth(site, None, to);
        main.is_some_and(|stack| analysis.symbols.stack_info(stack).optimizer != 0)
    };
    match rule {
        GrowthRule::TooEarly => BenignRule::TooEarly,
        _ if WORKSPACES.iter().any(is_workspace) => BenignRule::LibraryWorkspace,
        GrowthRule::WarmUp | GrowthRule::OneOff if below_optimizer() => BenignRule::OptimizerState,
        GrowthRule::OneOff | GrowthRule::Saturating if is_by_size => BenignRule::Ratchet,
        GrowthRule::WarmUp => BenignRule::WarmUp,
        GrowthRule::OneOff => BenignRule::OneOff,
        GrowthRule::Saturating => BenignRule::Saturating,
    }
}
