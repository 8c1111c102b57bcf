//! The entry points for driver calls and events.
//!
//! Each of them marks the calling thread as inside a hook. So driver calls that the driver or the
//! recorder makes itself are not recorded. The first event starts the recording.

use std::path::Path;
use std::sync::atomic::Ordering;

use gpumemtrace_format::Counter;

use crate::hot::driver_call::{CallGuard, begin_call_inside};
use crate::hot::event_name::EventName;
use crate::hot::hook_levels::HookPhase;
use crate::hot::nesting::enter_again;
use crate::hot::record::{Draft, record_event_inside, record_named_event_inside, record_text_event_inside};
use crate::hot::thread_state::{ThreadState, with_thread_state};
use crate::lifecycle::start_and_flush_pending;
use crate::platform::cancellation::uninterrupted;
use crate::platform::hook_frames::StackMark;
use crate::session::Session;
use crate::session::current::{may_start, running};
use crate::session::late_events::note_late_event;

/// Publishes a driver call that is about to be made.
///
/// Returns `None` if the call is not recorded: recording is off, or the call is made inside another
/// call. The caller then just makes the call.
#[inline(always)]
#[allow(clippy::inline_always, reason = "the mark belongs to the function that makes the call")]
pub fn begin_call(draft: &Draft) -> Option<CallGuard> {
    begin_call_at(StackMark::here(), draft)
}

/// As [`begin_call`], for a call that is made by the function with this mark.
#[inline]
pub fn begin_call_at(mark: StackMark, draft: &Draft) -> Option<CallGuard> {
    with_thread_state(|state| {
        let session = enter_hook(state, HookPhase::BeforeCall, mark)?;
        let call = begin_call_inside(state, session, draft);
        if call.is_none() {
            state.levels.leave();
        }
        call
    })
}

/// The sequence number that the next event will get; 0 if nothing is being recorded.
pub fn next_seq() -> u64 {
    running().map_or(0, |session| session.rings.next_seq().load(Ordering::Relaxed))
}

/// Records an event that has already happened.
#[inline]
pub fn record_event(draft: &Draft) {
    with_thread_state(|state| {
        let Some(session) = enter_hook(state, HookPhase::Event, StackMark::here()) else { return };
        record_event_inside(state, session, draft);
        state.levels.leave();
    });
}

/// Records an event with a name. The id of the name replaces `aux[0]`.
///
/// Each number in the name becomes `#`, so that "step 1", "step 2", ... share one name.
pub fn record_named_event(draft: &Draft, name: &[u8]) {
    with_thread_state(|state| {
        let Some(session) = enter_hook(state, HookPhase::Event, StackMark::here()) else { return };
        record_named_event_inside(state, session, draft, (&EventName::new(name), 0));
        state.levels.leave();
    });
}

/// Records an event with a text, which is stored unchanged. The id of the text replaces `aux[0]`.
pub fn record_text_event(draft: &Draft, text: &[u8]) {
    with_thread_state(|state| {
        let Some(session) = enter_hook(state, HookPhase::Event, StackMark::here()) else { return };
        record_text_event_inside(state, session, draft, text);
        state.levels.leave();
    });
}

/// True while a recording runs. Unlike an event, this question never starts one.
pub fn is_recording() -> bool {
    running().is_some()
}

/// True while a recording runs or may still start.
pub fn may_record() -> bool {
    is_recording() || may_start()
}

/// Path of the trace that is being written. With rotation, this is the path of the newest part.
pub fn trace_path() -> Option<&'static Path> {
    running().map(|session| session.path.as_path())
}

/// Adds one to a counter of the trace, outside of any event.
pub fn increment_counter(counter: Counter) {
    if let Some(session) = running() {
        session.rings.count(counter);
    }
}

/// Leaves the hook in which a panic was caught. Without this call the thread would count as inside
/// it for good.
pub fn reset_hook_after_panic() {
    increment_counter(Counter::InternalErrors);
    with_thread_state(|state| state.levels.leave());
}

/// Marks the calling thread as inside a hook. Returns `None` if recording is off, or if the thread
/// is inside another hook and must not record; see [`crate::hot::nesting`].
#[inline]
pub(super) fn enter_hook(state: &ThreadState, phase: HookPhase, mark: StackMark) -> Option<&'static Session> {
    let Some(session) = running() else { return enter_and_start(state, phase, mark) };
    let is_entered = state.levels.enter_first(phase, mark) || enter_again(state, session, phase, mark);
    is_entered.then_some(session)
}

/// Marks the calling thread as inside a hook and starts the recording, if one may start.
///
/// No signal handler runs meanwhile: one that left the start by a jump would make all threads wait
/// for a recording that never starts.
#[cold]
fn enter_and_start(state: &ThreadState, phase: HookPhase, mark: StackMark) -> Option<&'static Session> {
    if !may_start() {
        note_late_event();
        return None;
    }
    uninterrupted(|| {
        if !state.levels.enter_first(phase, mark) {
            return None;
        }
        let session = start_and_flush_pending(state);
        if session.is_none() {
            state.levels.leave();
        }
        session
    })
}
