//! The entry points for driver calls and events.
//!
//! Each of them marks the calling thread as inside a hook. So driver calls that the driver or the
//! recorder makes itself are not recorded. The first event starts the recording.

use std::path::Path;

use gpumemtrace_format::Counter;

use crate::hot::event_name::EventName;
use crate::hot::record::{
    CallGuard, Draft, begin_call_inside, record_event_inside, record_named_event_inside,
    record_text_event_inside,
};
use crate::hot::thread_state::{ThreadState, with_thread_state};
use crate::lifecycle::start_and_flush_pending;
use crate::session::Session;
use crate::session::current::{may_start, running};

/// Publishes a driver call that is about to be made.
///
/// Returns `None` if the call is not recorded: recording is off, or the call is made inside another
/// call. The caller then just makes the call.
#[inline]
pub fn begin_call(draft: &Draft) -> Option<CallGuard> {
    with_thread_state(|state| {
        let session = enter_hook(state)?;
        let call = begin_call_inside(state, session, draft);
        // Stays set while the driver runs: calls that it makes itself are not the program's.
        state.in_hook.set(call.is_some());
        call
    })
}

/// Records an event that has already happened.
#[inline]
pub fn record_event(draft: &Draft) {
    with_thread_state(|state| {
        let Some(session) = enter_hook(state) else { return };
        record_event_inside(state, session, draft);
        state.in_hook.set(false);
    });
}

/// Records an event with a name. The id of the name replaces `aux[0]`.
///
/// Each number in the name becomes `#`, so that "step 1", "step 2", ... share one name.
pub fn record_named_event(draft: &Draft, name: &[u8]) {
    with_thread_state(|state| {
        let Some(session) = enter_hook(state) else { return };
        record_named_event_inside(state, session, draft, (&EventName::new(name), 0));
        state.in_hook.set(false);
    });
}

/// Records an event with a text, which is stored unchanged. The id of the text replaces `aux[0]`.
pub fn record_text_event(draft: &Draft, text: &[u8]) {
    with_thread_state(|state| {
        let Some(session) = enter_hook(state) else { return };
        record_text_event_inside(state, session, draft, text);
        state.in_hook.set(false);
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

/// Resets the calling thread after a panic was caught at an entry point. Without this call the
/// thread would count as inside a hook for good.
pub fn reset_hook_after_panic() {
    increment_counter(Counter::InternalErrors);
    with_thread_state(|state| state.in_hook.set(false));
}

/// Marks the calling thread as inside a hook. Returns `None` if it already is, or if recording is
/// off.
#[inline]
pub(super) fn enter_hook(state: &ThreadState) -> Option<&'static Session> {
    if state.in_hook.get() {
        increment_counter(Counter::NestedCalls);
        return None;
    }
    state.in_hook.set(true);
    let session = running().or_else(|| start_and_flush_pending(state));
    if session.is_none() {
        state.in_hook.set(false);
    }
    session
}
