//! What the program says of itself: steps, phases, marks.
//!
//! Constraint: to say something must not begin a recording, and what was said before it began is part of it all the same. Consequence:
//! while nothing is recorded, and may be yet, it is kept ([`crate::hot::pending_markers`]); the first event brings it along.

use gpumemtrace_format::event::{MARK_NAMED, MARK_STEP};
use gpumemtrace_format::{ApiId, Counter, EventKind};

use crate::hot::name::EventName;
use crate::hot::pending_markers::{Enqueued, MarkerKind, MarkerSink, PENDING};
use crate::hot::record::{Draft, enter, record_event, record_event_inside, record_named_event_inside};
use crate::hot::thread_state::{ThreadState, with_local};
use crate::platform::this_thread;
use crate::session::Session;
use crate::session::current::{may_start, running, start_once};

/// How long the end of a phase waits for its begin, which another thread is just recording.
const PATIENCE_MS: u32 = 1_000;

/// A step begins.
pub fn begin_step() {
    if running().is_some() {
        record_event(&of_step());
    } else if may_start() {
        let late = PENDING.step(std::process::id(), || running().is_some());
        (0..late).for_each(|_| record_event(&of_step()));
    }
}

/// What follows, on all threads, is part of this, until [`end_phase`]. Numbers in the name are one name.
pub fn begin_phase(name: &[u8]) {
    say_or_keep(MarkerKind::Phase, &EventName::new(name));
}

/// The phase that this thread began last ends.
pub fn end_phase() {
    let mut waited_ms = 0;
    let wait = || {
        // SAFETY: a plain sleep.
        unsafe { libc::usleep(1_000) };
        waited_ms += 1;
        waited_ms < PATIENCE_MS
    };
    if PENDING.has_any() && PENDING.end_phase((std::process::id(), this_thread()), wait) {
        return;
    }
    if running().is_some() {
        record_event(&Draft::new(EventKind::PHASE_END, ApiId::default()));
    }
}

/// A moment that has a name.
pub fn record_mark(name: &[u8]) {
    say_or_keep(MarkerKind::Mark, &EventName::literal(name));
}

fn say_or_keep(what: MarkerKind, name: &EventName) {
    if running().is_none() {
        let who = (std::process::id(), this_thread());
        if !may_start() && running().is_none()
            || PENDING.keep(what, who, name, || running().is_some()) == Enqueued::Yes
        {
            return;
        }
    }
    with_local(|local| {
        let Some(session) = enter(local) else { return };
        record(local, session, (what, 0), name);
        local.busy.set(false);
    });
}

fn of_step() -> Draft {
    Draft { aux: [MARK_STEP, 0], ..Draft::new(EventKind::MARK, ApiId::default()) }
}

/// `thread`: who said it, 0 for the one that records it.
fn record(
    local: &ThreadState,
    session: &'static Session,
    (what, thread): (MarkerKind, u32),
    name: &EventName,
) {
    let (draft, place) = match what {
        MarkerKind::Phase => {
            let draft = Draft::new(EventKind::PHASE_BEGIN, ApiId::default());
            (Draft { aux: [0, u64::from(thread)], ..draft }, 0)
        }
        MarkerKind::Mark => {
            (Draft { aux: [MARK_NAMED, 0], ..Draft::new(EventKind::MARK, ApiId::default()) }, 1)
        }
    };
    record_named_event_inside(local, session, &draft, (name, place));
}

struct FlushToTrace<'a> {
    local: &'a ThreadState,
    session: &'static Session,
    thread: u32,
}

impl MarkerSink for FlushToTrace<'_> {
    fn step(&mut self) {
        record_event_inside(self.local, self.session, &of_step());
    }

    fn named(&mut self, what: MarkerKind, thread: u32, name: &EventName) {
        let thread = if thread == self.thread { 0 } else { thread };
        record(self.local, self.session, (what, thread), name);
    }

    fn lost(&mut self, count: u64) {
        for _ in 0..count.min(1 << 20) {
            self.session.shared.count(Counter::DroppedEvents);
        }
    }
}

/// The session, started if this is the first event, with all that was said before it in front of it. The thread is marked as inside.
#[cold]
pub(crate) fn start(local: &ThreadState) -> Option<&'static Session> {
    let session = start_once()?;
    PENDING.hand_out(std::process::id(), &mut FlushToTrace { local, session, thread: this_thread() });
    Some(session)
}
