//! The hooks that a thread is inside of.
//!
//! A signal handler may interrupt the thread between any two instructions, and its hooks read what
//! is stored here. So each store is in program order: compiler fences keep it there, and cost
//! nothing.

use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::platform::hook_frames::StackMark;

/// Hooks of one thread that can be open at a time: each but the first in a signal handler.
pub(super) const LEVELS: usize = 4;
/// Values of [`HookLevels::position`] for each level.
const STEP: u32 = 4;

/// What a hook of ours is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum HookPhase {
    /// Publishes a call that is made afterwards.
    BeforeCall = 1,
    /// Records an event that has happened.
    Event = 2,
    /// Completes a call that has returned.
    AfterCall = 3,
}

/// The open hooks of a thread. All zero bytes are a thread outside of any hook.
#[derive(Debug)]
pub(crate) struct HookLevels {
    /// Number of hooks that are inside their real function, times [`STEP`], plus a [`HookPhase`] if
    /// the recorder is at work inside them.
    position: Cell<u32>,
    /// The stack pointer of each open hook.
    pub(super) marks: [Cell<StackMark>; LEVELS],
    /// The number of the call of each open hook in its ring.
    pub(super) calls: [Cell<u64>; LEVELS],
}

impl HookLevels {
    pub(crate) const fn new() -> Self {
        Self {
            position: Cell::new(0),
            marks: [const { Cell::new(StackMark::NONE) }; LEVELS],
            calls: [const { Cell::new(0) }; LEVELS],
        }
    }

    /// Enters a hook from outside of any hook. False if the thread is inside one.
    #[inline]
    pub(crate) fn enter_first(&self, phase: HookPhase, mark: StackMark) -> bool {
        let is_outside = self.position.get() == 0;
        if is_outside {
            // The mark comes first: a handler's hook that finds this phase looks for it.
            self.marks[0].set(mark);
            self.set_position(phase as u32);
            // A handler's hook before the last store has replaced the mark.
            self.marks[0].set(mark);
            compiler_fence(Ordering::SeqCst);
        }
        is_outside
    }

    /// Changes what a signal handler sees, after all that the thread has done so far and before all
    /// that it does next.
    #[inline]
    fn set_position(&self, position: u32) {
        compiler_fence(Ordering::SeqCst);
        self.position.set(position);
        compiler_fence(Ordering::SeqCst);
    }

    /// Ends the recorder's work, in the hook that is at work.
    #[inline]
    pub(crate) fn leave(&self) {
        self.set_position(self.position.get() / STEP * STEP);
    }

    /// Passes from [`HookPhase::BeforeCall`] to the real function. Returns the hook's level.
    #[inline]
    pub(crate) fn begin_real_call(&self, number: u64) -> u32 {
        let level = self.position.get() / STEP;
        if let Some(call) = self.calls.get(level as usize) {
            call.set(number);
        }
        self.set_position((level + 1) * STEP);
        level
    }

    /// Passes from the real function to [`HookPhase::AfterCall`]. False, without a change, if hooks
    /// inside the real function are still open: a handler left them by a jump.
    #[inline]
    #[must_use]
    pub(crate) fn end_real_call(&self, level: u32) -> bool {
        let is_innermost = self.position.get() == (level + 1) * STEP;
        if is_innermost {
            self.begin_after_call(level);
        }
        is_innermost
    }

    /// Passes to [`HookPhase::AfterCall`] of this level, whatever the thread was inside of.
    #[inline]
    pub(super) fn begin_after_call(&self, level: u32) {
        self.set_position(level * STEP + HookPhase::AfterCall as u32);
    }

    /// Leaves a hook after its call has returned.
    #[inline]
    pub(crate) fn leave_level(&self, level: u32) {
        self.set_position(level * STEP);
    }

    /// True if the recorder is at work in this thread.
    pub(crate) fn is_at_work(&self) -> bool {
        !self.position.get().is_multiple_of(STEP)
    }

    /// True if a signal handler's hook is at work inside another hook. The ring cannot be drained
    /// beyond the call of the outer hook.
    pub(crate) fn is_nested(&self) -> bool {
        self.position.get() >= STEP
    }

    /// The innermost hook: its level, and what the recorder does there; `None` while its real
    /// function runs.
    pub(super) fn innermost(&self) -> Option<(usize, Option<HookPhase>)> {
        let position = self.position.get();
        let phase = match position % STEP {
            1 => HookPhase::BeforeCall,
            2 => HookPhase::Event,
            3 => HookPhase::AfterCall,
            _ => return Some(((position / STEP).checked_sub(1)? as usize, None)),
        };
        Some(((position / STEP) as usize, Some(phase)))
    }

    /// Enters a hook of this level, inside the real functions of those below it. `level` is less
    /// than [`LEVELS`].
    pub(super) fn enter_level(&self, level: usize, phase: HookPhase, mark: StackMark) {
        self.marks[level].set(mark);
        self.set_position(level as u32 * STEP + phase as u32);
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    use super::super::single_steps::with_signal_at_each_step;
    use super::*;

    #[test]
    fn position_follows_calls_of_nested_hooks() {
        let levels = HookLevels::new();
        assert_eq!(levels.innermost(), None);
        assert!(levels.enter_first(HookPhase::BeforeCall, StackMark::here()));
        assert!(!levels.enter_first(HookPhase::Event, StackMark::here()));
        assert_eq!(levels.innermost(), Some((0, Some(HookPhase::BeforeCall))));
        assert_eq!(levels.begin_real_call(7), 0);
        assert_eq!(
            (levels.innermost(), levels.is_at_work(), levels.is_nested()),
            (Some((0, None)), false, true)
        );
        levels.enter_level(1, HookPhase::BeforeCall, StackMark::here());
        assert_eq!(levels.begin_real_call(9), 1);
        assert_eq!(levels.innermost(), Some((1, None)));
        assert!(levels.end_real_call(1));
        assert_eq!(levels.innermost(), Some((1, Some(HookPhase::AfterCall))));
        levels.leave_level(1);
        assert_eq!(levels.innermost(), Some((0, None)), "the outer call still runs");
        assert!(levels.end_real_call(0));
        levels.leave_level(0);
        assert_eq!(levels.innermost(), None);
        assert_eq!((levels.calls[0].get(), levels.calls[1].get()), (7, 9));
    }

    #[test]
    fn outer_call_does_not_end_before_the_hooks_inside_it() {
        let levels = HookLevels::new();
        assert!(levels.enter_first(HookPhase::BeforeCall, StackMark::here()));
        levels.begin_real_call(7);
        levels.enter_level(1, HookPhase::BeforeCall, StackMark::here());
        levels.begin_real_call(9);
        assert!(!levels.end_real_call(0));
        assert_eq!(levels.innermost(), Some((1, None)), "nothing has changed");
        levels.leave_level(1);
        assert!(levels.end_real_call(0));
        assert_eq!(levels.innermost(), Some((0, Some(HookPhase::AfterCall))));
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    #[test]
    fn handler_finds_the_mark_of_the_hook_that_it_interrupts() {
        let (levels, mark) = (HookLevels::new(), StackMark::here());
        let (mut at_work, mut without_mark) = (0, 0);
        with_signal_at_each_step(
            || assert!(levels.enter_first(HookPhase::Event, mark)),
            || {
                at_work += u32::from(levels.is_at_work());
                without_mark += u32::from(levels.is_at_work() && levels.marks[0].get() != mark);
            },
        );
        assert_eq!((at_work > 1, without_mark), (true, 0));
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    #[test]
    fn hook_of_a_handler_leaves_the_interrupted_one_its_mark() {
        let mark = StackMark::here();
        let (mut at, mut last) = (0, false);
        while !last {
            let (levels, mut step) = (HookLevels::new(), 0);
            last = true;
            with_signal_at_each_step(
                || assert!(levels.enter_first(HookPhase::Event, mark)),
                || {
                    step += 1;
                    if step == at && levels.enter_first(HookPhase::Event, StackMark::NONE) {
                        levels.leave();
                        last = false;
                    }
                },
            );
            assert_eq!((levels.marks[0].get(), levels.is_at_work()), (mark, true), "handler at step {at}");
            last &= at > 0;
            at += 1;
        }
        assert!(at > 2, "no handler began a hook");
    }
}
