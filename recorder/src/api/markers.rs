//! Steps, phases and marks, which the program reports itself.
//!
//! A marker must not start a recording, but a marker from before the first GPU call belongs to the
//! trace all the same. While no recording runs and one may still start, markers wait in
//! [`PENDING`]; the first event records them.

use gpumemtrace_format::{ApiId, EventKind};

use super::events::{enter_hook, record_event};
use crate::hot::event_name::EventName;
use crate::hot::hook_levels::HookPhase;
use crate::hot::pending_markers::{Enqueued, MarkerKind, PENDING};
use crate::hot::record::{Draft, record_marker_inside, step_draft};
use crate::hot::thread_state::with_thread_state;
use crate::platform::cancellation::without_cancellation;
use crate::platform::hook_frames::StackMark;
use crate::platform::this_thread;
use crate::session::current::{may_start, running};

/// How long the end of a phase waits while another thread is recording the begin.
const PHASE_PATIENCE_MS: u32 = 1_000;

/// Begins a step. The step before it ends here.
pub fn begin_step() {
    if running().is_some() {
        record_event(&step_draft());
    } else if may_start() {
        let late = PENDING.add_step(std::process::id(), || running().is_some());
        (0..late).for_each(|_| record_event(&step_draft()));
    }
}

/// Begins a phase, on all threads, until the matching [`end_phase`]. Each number in the name
/// becomes `#`.
pub fn begin_phase(name: &[u8]) {
    record_or_enqueue(MarkerKind::Phase, &EventName::new(name));
}

/// Ends the phase that the calling thread began last.
pub fn end_phase() {
    let mut waited_ms = 0;
    let wait = || {
        // SAFETY: a plain sleep.
        without_cancellation(|| unsafe { libc::usleep(1_000) });
        waited_ms += 1;
        waited_ms < PHASE_PATIENCE_MS
    };
    if PENDING.has_any() && PENDING.end_phase((std::process::id(), this_thread()), wait) {
        return;
    }
    if running().is_some() {
        record_event(&Draft::new(EventKind::PHASE_END, ApiId::default()));
    }
}

/// Records a named moment. The name is stored unchanged.
pub fn record_mark(name: &[u8]) {
    record_or_enqueue(MarkerKind::Mark, &EventName::literal(name));
}

fn record_or_enqueue(kind: MarkerKind, name: &EventName) {
    if running().is_none() {
        let caller = (std::process::id(), this_thread());
        if !may_start() && running().is_none()
            || PENDING.enqueue(kind, caller, name, || running().is_some()) == Enqueued::Yes
        {
            return;
        }
    }
    with_thread_state(|state| {
        let Some(session) = enter_hook(state, HookPhase::Event, StackMark::here()) else { return };
        record_marker_inside(state, session, (kind, 0), name);
        state.levels.leave();
    });
}
