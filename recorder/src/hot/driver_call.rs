//! Driver calls: published before they are made, completed when they return.

use std::sync::atomic::Ordering;

use gpumemtrace_format::{Counter, Event, NO_SEQ};

use super::nesting::{end_real_call_after_jump, leave_call};
use super::record::{Draft, capture_stacks, event_from};
use super::thread_state::{ThreadState, with_thread_state};
use crate::platform::clock::event_ns;
use crate::ring::mapping::MappedRing;
use crate::ring::protocol::ring::RingWords;
use crate::session::Session;

/// A driver call that is published in the ring and not completed yet.
///
/// Call [`CallGuard::complete`] when the driver returns. A call that never returns stays in the
/// trace as in flight.
#[derive(Debug)]
#[must_use]
pub struct CallGuard {
    place: CallPlace,
    event: Event,
}

/// Where a call is recorded.
#[derive(Debug)]
struct CallPlace {
    session: &'static Session,
    ring: MappedRing,
    index: usize,
    number: u64,
    /// How many other hooks this thread was in.
    level: u32,
}

impl CallPlace {
    /// Notes that the real function has returned, or has been left.
    #[inline]
    fn end_real_call(&self, state: &ThreadState) {
        if !state.levels.end_real_call(self.level) {
            end_real_call_after_jump(state, self.session, self.level);
        }
    }
}

/// Leaves a call in flight if it unwinds: a cancelled thread, a C++ exception. Not a part of
/// [`CallGuard`], which is moved, and a value with a destructor costs more to move.
#[derive(Debug)]
pub struct UnwindGuard<'a>(Option<&'a CallPlace>);

pub(crate) fn begin_call_inside(
    state: &ThreadState,
    session: &'static Session,
    draft: &Draft,
) -> Option<CallGuard> {
    let block = state.block(session)?;
    let index = block.producer.index();
    let _guard = session.enter_to_record(index)?;
    let (python_stack, native_stack) = capture_stacks(state, session, block, draft.kind);
    let now_ns = event_ns();
    if !block.producer.reserve(session, 1, now_ns) {
        session.rings.count(Counter::DroppedEvents);
        return None;
    }
    let ring = *block.producer.ring()?;
    let mut event = event_from(draft, now_ns, python_stack, native_stack);
    event.in_flight = true;
    if draft.kind.is_ordered_before_call() {
        event.seq = session.rings.next_seq().fetch_add(1, Ordering::Relaxed);
    }
    let number = block.producer.push(&event.to_words());
    // Until it is completed, calls of the driver itself are not the program's.
    let level = state.levels.begin_real_call(number);
    Some(CallGuard { place: CallPlace { session, ring, index, number, level }, event })
}

impl CallGuard {
    /// Completes the record of a call that returned `result`. `fill` adds what the call gave back.
    #[inline]
    pub fn complete(mut self, result: u16, fill: impl FnOnce(&mut Event)) {
        let (place, event) = (&self.place, &mut self.event);
        with_thread_state(|state| place.end_real_call(state));
        // `fill` may panic.
        let unwinding = UnwindGuard(Some(place));
        // If the recording has ended meanwhile, the call stays in the trace as in flight.
        if let Some(_guard) = place.session.enter_hook(place.index) {
            event.result = result;
            event.in_flight = false;
            fill(event);
            let now_ns = event_ns();
            if place.session.rings.is_safe_at(now_ns) || place.session.wait_for_intact_file() {
                if event.seq == NO_SEQ {
                    event.seq = place.session.rings.next_seq().fetch_add(1, Ordering::Relaxed);
                    event.time_ns = now_ns;
                }
                place.ring.complete(place.number, &event.to_words());
            }
        }
        unwinding.disarm();
        with_thread_state(|state| state.levels.leave_level(place.level));
    }
}

impl<'a> UnwindGuard<'a> {
    /// Guards a call that is made right afterwards.
    #[inline]
    pub fn new(call: Option<&'a CallGuard>) -> Self {
        Self(call.map(|call| &call.place))
    }

    /// Ends the guard after a return.
    #[inline]
    pub fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for UnwindGuard<'_> {
    #[cold]
    fn drop(&mut self) {
        let Some(place) = self.0 else { return };
        with_thread_state(|state| {
            place.end_real_call(state);
            if let Some(_guard) = place.session.enter_hook(place.index)
                && place.session.may_access_rings()
            {
                leave_call(place.ring, place.number);
            }
            state.levels.leave_level(place.level);
        });
    }
}
