//! Where a thread is in the hooks, and what a hook does that begins inside another one.
//!
//! A hook that begins while its thread is inside another hook has one of three causes:
//!
//! * The real function makes the call: a driver, or a library that forwards to it. The outer hook
//!   records the program's call, so this one is not recorded.
//! * A signal handler interrupted the outer hook. Its calls are the program's. They are recorded
//!   if the handler interrupted the real function. They are counted as lost if it interrupted
//!   the recorder itself, which may have left the ring and the caches half changed.
//! * The outer hook no longer exists: a handler left it by `siglongjmp`. Its call stays in flight,
//!   an event that it was recording is counted as lost, and recording goes on.
//!
//! The cause is not visible in the arguments, so the thread's call chain decides
//! ([`crate::platform::hook_frames`]). That takes microseconds, and happens only in these cases.
//!
//! A handler may also leave an inner hook and then return to the outer one. The outer hook closes
//! it: a call that stayed in flight would keep the writer from all later records of the thread.

use gpumemtrace_format::Counter;
use gpumemtrace_format::event::STATE_LEFT;
use gpumemtrace_format::ring::is_in_flight;

use super::hook_levels::{HookPhase, LEVELS};
use super::thread_state::ThreadState;
use crate::diagnostics::{errno, set_errno};
use crate::platform::cancellation::uninterrupted;
use crate::platform::hook_frames::{OuterHook, StackMark, find_outer_hook};
use crate::ring::mapping::MappedRing;
use crate::ring::protocol::ring::RingWords;
use crate::session::Session;

/// Enters a hook from inside another one. False if the new hook must not record; its call has then
/// been counted.
#[cold]
#[inline(never)]
pub(crate) fn enter_again(
    state: &ThreadState,
    session: &'static Session,
    phase: HookPhase,
    mark: StackMark,
) -> bool {
    let saved_errno = errno();
    let refused = uninterrupted(|| refuse_or_enter(state, session, phase, mark));
    if let Some(counter) = refused {
        session.rings.count(counter);
    }
    set_errno(saved_errno);
    refused.is_none()
}

/// Enters a hook from inside another one, or returns what to count.
fn refuse_or_enter(
    state: &ThreadState,
    session: &'static Session,
    phase: HookPhase,
    mark: StackMark,
) -> Option<Counter> {
    let levels = &state.levels;
    loop {
        let Some((level, own_work)) = levels.innermost() else {
            levels.enter_first(phase, mark);
            return None;
        };
        let Some(outer) = levels.marks.get(level) else { return Some(Counter::InterruptedEvents) };
        match judge(find_outer_hook(outer.get()), level, own_work) {
            HookDecision::CloseOuter => close_left_hook(state, session, level, own_work),
            HookDecision::Enter => {
                levels.enter_level(level + 1, phase, mark);
                return None;
            }
            HookDecision::Count(counter) => return Some(counter),
        }
    }
}

/// What happens to a hook that begins inside another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HookDecision {
    /// It records, one level above the other hook.
    Enter,
    /// The other hook is closed, and the next one is looked at.
    CloseOuter,
    /// It does not record; its call is counted.
    Count(Counter),
}

/// Decides by the call chain, and by what the outer hook of this level does.
fn judge(outer: OuterHook, level: usize, own_work: Option<HookPhase>) -> HookDecision {
    match outer {
        OuterHook::Left => HookDecision::CloseOuter,
        // Without a signal frame in between it is not the program's, also while the recorder works:
        // hooks query the driver, which may forward to functions that have hooks.
        OuterHook::Calling => HookDecision::Count(Counter::NestedCalls),
        OuterHook::Interrupted if own_work.is_none() && level + 1 < LEVELS => HookDecision::Enter,
        // If the chain cannot be followed, it may be the program's. A loss that did not happen does
        // less harm than one that is not reported.
        OuterHook::Interrupted | OuterHook::Unknown => HookDecision::Count(Counter::InterruptedEvents),
    }
}

/// Ends the real call of a level above which hooks are still open. They were left by a jump.
#[cold]
#[inline(never)]
pub(crate) fn end_real_call_after_jump(state: &ThreadState, session: &'static Session, level: u32) {
    uninterrupted(|| {
        while let Some((inner, own_work)) = state.levels.innermost()
            && inner > level as usize
        {
            close_left_hook(state, session, inner, own_work);
        }
    });
    state.levels.begin_after_call(level);
}

/// Closes the innermost hook, which a jump has left, and repairs what it left half changed.
fn close_left_hook(
    state: &ThreadState,
    session: &'static Session,
    level: usize,
    own_work: Option<HookPhase>,
) {
    if let Some((index, ring)) = state.claimed_ring(session)
        && let Some(_guard) = session.enter_hook(index)
        && session.may_access_rings()
    {
        let number = state.levels.calls[level].get();
        match own_work {
            None | Some(HookPhase::AfterCall) => leave_call(ring, number),
            Some(HookPhase::BeforeCall) => leave_unnoted_call(state, ring, level),
            Some(HookPhase::Event) => session.rings.count(Counter::InterruptedEvents),
        }
        if own_work.is_some() {
            state.reset_block(session, index, ring);
        }
    }
    state.levels.leave_level(level as u32);
}

/// A hook that publishes a call notes its number afterwards. If it was left in between, the call is
/// the last record of the ring.
fn leave_unnoted_call(state: &ThreadState, ring: MappedRing, level: usize) {
    let Some(number) = ring.published().checked_sub(1) else { return };
    if !state.levels.calls[..level].iter().any(|outer| outer.get() == number) {
        leave_call(ring, number);
    }
}

/// Marks a call as left, if it is still in flight, so that the writer does not wait for it. Its
/// outcome is unknown.
pub(crate) fn leave_call(ring: MappedRing, number: u64) {
    let mut words = ring.load(number);
    if number >= ring.released() && is_in_flight(words[7]) {
        words[7] = words[7] & !(7 << 48) | u64::from(STATE_LEFT) << 48;
        ring.complete(number, &words);
    }
}

/// The thread that ends the process never returns to a hook that a signal handler interrupted.
/// Releases that hook, so that the end does not wait for it. Its event, if it was not published,
/// stays a gap in the ring file, as after a kill.
pub(crate) fn release_interrupted_hook(state: &ThreadState, session: &'static Session) {
    if state.levels.is_at_work()
        && let Some((index, _)) = state.claimed_ring(session)
    {
        session.release_hook(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_without_a_signal_frame_is_not_the_programs() {
        for own_work in [None, Some(HookPhase::BeforeCall), Some(HookPhase::AfterCall)] {
            assert_eq!(judge(OuterHook::Calling, 0, own_work), HookDecision::Count(Counter::NestedCalls));
        }
    }

    #[test]
    fn call_of_a_handler_is_recorded_or_counted_as_lost() {
        let lost = HookDecision::Count(Counter::InterruptedEvents);
        assert_eq!(judge(OuterHook::Interrupted, 0, None), HookDecision::Enter);
        assert_eq!(judge(OuterHook::Interrupted, LEVELS - 1, None), lost);
        assert_eq!(judge(OuterHook::Interrupted, 0, Some(HookPhase::Event)), lost);
        assert_eq!(judge(OuterHook::Unknown, 0, None), lost, "it may be the program's");
    }
}
