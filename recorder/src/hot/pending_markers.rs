//! Steps, phases and marks from before the recording started.
//!
//! A marker is no use of a GPU and must not start a recording, or every process would leave a file.
//! But a phase that is open at the first GPU call belongs to the trace. Until then markers are kept
//! in one fixed table, and the thread that starts the recording writes them in front of its first
//! event. Nothing is allocated. A marker that finds no free slot is counted as dropped.
//!
//! A thread may enqueue a marker while another thread starts the recording. An open slot is taken
//! by exactly one of the two ([`PendingMarker::take`]): the thread that enqueued it then records it
//! itself, or the starting thread has recorded it.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::event_name::EventName;

/// Open phases and marks together.
const SLOTS: usize = 64;
/// Steps that are recorded one by one; steps beyond these are counted as dropped.
const MAX_STEPS: u64 = 1 << 16;

/// The two kinds of marker that have a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum MarkerKind {
    /// The begin of a phase that is still open.
    Phase = 1,
    /// A moment with a name.
    Mark = 2,
}

const FREE: u32 = 0;
const WRITING: u32 = 1;
const OPEN: u32 = 2;
const TAKEN: u32 = 3;

struct PendingMarker {
    state: AtomicU32,
    kind: AtomicU32,
    thread: AtomicU32,
    /// Steps that had begun before this marker.
    steps: AtomicU64,
    /// Position among all markers.
    order: AtomicU64,
    name: UnsafeCell<EventName>,
}

// SAFETY: the name is written by the thread that made the slot `WRITING`, and read by the thread
// that moved it from `OPEN` to `TAKEN`: one at a time.
unsafe impl Sync for PendingMarker {}

/// The markers of one process that are not recorded yet.
pub(crate) struct PendingMarkers {
    /// The process the markers belong to. In a forked child they are the parent's and are
    /// discarded.
    pid: AtomicU32,
    /// Slots in use, so that a process without pending markers need not search.
    used: AtomicU32,
    steps: AtomicU64,
    order: AtomicU64,
    /// Open phases that found no slot.
    lost_phases: AtomicU32,
    lost_marks: AtomicU32,
    slots: [PendingMarker; SLOTS],
}

/// The pending markers of this process.
pub(crate) static PENDING: PendingMarkers = PendingMarkers::new();

impl PendingMarker {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            kind: AtomicU32::new(0),
            thread: AtomicU32::new(0),
            steps: AtomicU64::new(0),
            order: AtomicU64::new(0),
            name: UnsafeCell::new(EventName::EMPTY),
        }
    }

    fn change_state(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Takes an open slot. Returns true for exactly one of the threads that compete for it.
    fn take(&self) -> bool {
        self.change_state(OPEN, TAKEN)
    }
}

/// What became of a marker in [`PendingMarkers::enqueue`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Enqueued {
    /// It is recorded with the first event, or counted as dropped.
    Yes,
    /// The recording has started meanwhile: the caller records the marker itself.
    TooLate,
}

impl PendingMarkers {
    const fn new() -> Self {
        Self {
            pid: AtomicU32::new(0),
            used: AtomicU32::new(0),
            steps: AtomicU64::new(0),
            order: AtomicU64::new(0),
            lost_phases: AtomicU32::new(0),
            lost_marks: AtomicU32::new(0),
            slots: [const { PendingMarker::new() }; SLOTS],
        }
    }

    /// Discards the markers of the parent if this process is a forked child.
    fn discard_if_forked(&self, pid: u32) {
        if self.pid.load(Ordering::Relaxed) == pid || self.pid.swap(pid, Ordering::AcqRel) == pid {
            return;
        }
        for slot in &self.slots {
            slot.state.store(FREE, Ordering::SeqCst);
        }
        for number in [&self.used, &self.lost_phases, &self.lost_marks] {
            number.store(0, Ordering::SeqCst);
        }
        self.steps.store(0, Ordering::SeqCst);
    }

    /// Counts a step. Returns the number of steps that the caller must record itself, because
    /// `is_recorded` says that the recording has started meanwhile.
    pub(crate) fn add_step(&self, pid: u32, is_recorded: impl Fn() -> bool) -> u64 {
        self.discard_if_forked(pid);
        self.steps.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if is_recorded() { self.steps.swap(0, Ordering::SeqCst).min(MAX_STEPS) } else { 0 }
    }

    /// Keeps a marker of the given process and thread until the recording starts. `is_recorded`
    /// returns true if it has started meanwhile.
    pub(crate) fn enqueue(
        &self,
        kind: MarkerKind,
        (pid, thread): (u32, u32),
        name: &EventName,
        is_recorded: impl Fn() -> bool,
    ) -> Enqueued {
        self.discard_if_forked(pid);
        let Some(slot) = self.slots.iter().find(|slot| slot.change_state(FREE, WRITING)) else {
            let lost = if kind == MarkerKind::Phase { &self.lost_phases } else { &self.lost_marks };
            lost.fetch_add(1, Ordering::SeqCst);
            return Enqueued::Yes;
        };
        slot.kind.store(kind as u32, Ordering::Relaxed);
        slot.thread.store(thread, Ordering::Relaxed);
        slot.steps.store(self.steps.load(Ordering::SeqCst), Ordering::Relaxed);
        slot.order.store(self.order.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        // SAFETY: the slot is `WRITING`, and it was this thread that made it so.
        unsafe { slot.name.get().write(*name) };
        self.used.fetch_add(1, Ordering::SeqCst);
        slot.state.store(OPEN, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if is_recorded() && slot.take() {
            self.release(slot);
            return Enqueued::TooLate;
        }
        Enqueued::Yes
    }

    /// True while an open phase from before the recording may still be pending.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.used.load(Ordering::SeqCst) > 0 || self.lost_phases.load(Ordering::SeqCst) > 0
    }

    /// Ends the phase that the given thread began last. Returns true if that phase was still
    /// pending, so that neither its begin nor its end is recorded.
    ///
    /// If another thread is recording the begin at this moment, `wait` is called until that is done
    /// or `wait` returns false.
    pub(crate) fn end_phase(&self, (pid, thread): (u32, u32), mut wait: impl FnMut() -> bool) -> bool {
        self.discard_if_forked(pid);
        // A phase without a slot began after all phases that have one.
        let decrement = |lost: u32| lost.checked_sub(1);
        if self.lost_phases.fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement).is_ok() {
            return true;
        }
        loop {
            let is_own_phase = |slot: &&PendingMarker| {
                matches!(slot.state.load(Ordering::SeqCst), OPEN | TAKEN)
                    && slot.kind.load(Ordering::Relaxed) == MarkerKind::Phase as u32
                    && slot.thread.load(Ordering::Relaxed) == thread
            };
            let last =
                self.slots.iter().filter(is_own_phase).max_by_key(|slot| slot.order.load(Ordering::Relaxed));
            let Some(slot) = last else { return false };
            if slot.take() {
                self.release(slot);
                return true;
            }
            // The begin is being recorded at this moment, and the end must come after it.
            if !wait() {
                return false;
            }
        }
    }

    /// Passes all pending markers to `sink`, once and in order. To be called when the recording has
    /// started.
    pub(crate) fn flush(&self, pid: u32, sink: &mut dyn MarkerSink) {
        self.discard_if_forked(pid);
        // From here on, threads that add a marker see that the recording runs.
        fence(Ordering::SeqCst);
        let mut flushed_steps = 0;
        while let Some(slot) = self.first_open() {
            if !slot.take() {
                continue;
            }
            flushed_steps = flush_steps(flushed_steps, slot.steps.load(Ordering::Relaxed), sink);
            let kind = if slot.kind.load(Ordering::Relaxed) == MarkerKind::Phase as u32 {
                MarkerKind::Phase
            } else {
                MarkerKind::Mark
            };
            // SAFETY: the slot is `TAKEN`, and it was this thread that made it so.
            let name = unsafe { &*slot.name.get() };
            sink.add_marker(kind, slot.thread.load(Ordering::Relaxed), name);
            self.release(slot);
        }
        let all = self.steps.swap(0, Ordering::SeqCst);
        flush_steps(flushed_steps, all, sink);
        let lost = self.lost_phases.load(Ordering::SeqCst) + self.lost_marks.swap(0, Ordering::SeqCst);
        sink.count_lost(u64::from(lost) + all.saturating_sub(MAX_STEPS));
    }

    fn first_open(&self) -> Option<&PendingMarker> {
        let open = self.slots.iter().filter(|slot| slot.state.load(Ordering::SeqCst) == OPEN);
        open.min_by_key(|slot| slot.order.load(Ordering::Relaxed))
    }

    fn release(&self, slot: &PendingMarker) {
        slot.state.store(FREE, Ordering::SeqCst);
        self.used.fetch_sub(1, Ordering::SeqCst);
    }
}

fn flush_steps(flushed: u64, until: u64, sink: &mut dyn MarkerSink) -> u64 {
    let until = until.min(MAX_STEPS).max(flushed);
    (flushed..until).for_each(|_| sink.add_step());
    until
}

/// Receives the pending markers in order.
pub(crate) trait MarkerSink {
    fn add_step(&mut self);
    /// A phase or mark of the given thread.
    fn add_marker(&mut self, kind: MarkerKind, thread: u32, name: &EventName);
    /// Markers that found no slot.
    fn count_lost(&mut self, count: u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct CollectedMarkers {
        texts: Vec<String>,
        lost: u64,
    }

    impl MarkerSink for CollectedMarkers {
        fn add_step(&mut self) {
            self.texts.push("step".to_owned());
        }

        fn add_marker(&mut self, kind: MarkerKind, thread: u32, name: &EventName) {
            self.texts.push(format!("{kind:?} {thread} {}", String::from_utf8_lossy(name.text())));
        }

        fn count_lost(&mut self, count: u64) {
            self.lost += count;
        }
    }

    fn flush(pending: &PendingMarkers, pid: u32) -> (Vec<String>, u64) {
        let mut collected = CollectedMarkers::default();
        pending.flush(pid, &mut collected);
        (collected.texts, collected.lost)
    }

    fn enqueue(pending: &PendingMarkers, kind: MarkerKind, caller: (u32, u32), name: &str) {
        let name = EventName::literal(name.as_bytes());
        assert_eq!(pending.enqueue(kind, caller, &name, || false), Enqueued::Yes);
    }

    #[test]
    fn flush_passes_open_phases_marks_and_steps_once_in_order() {
        let pending = PendingMarkers::new();
        enqueue(&pending, MarkerKind::Phase, (1, 7), "over");
        enqueue(&pending, MarkerKind::Phase, (1, 7), "outer");
        enqueue(&pending, MarkerKind::Phase, (1, 8), "other thread");
        enqueue(&pending, MarkerKind::Phase, (1, 7), "inner");
        assert_eq!(pending.add_step(1, || false), 0);
        enqueue(&pending, MarkerKind::Mark, (1, 7), "moment 3");
        pending.add_step(1, || false);
        assert!(pending.has_any());
        assert!(pending.end_phase((1, 7), || panic!("no other thread is recording it")));
        assert!(!pending.end_phase((1, 9), || panic!("thread 9 has no phase")));
        let expected =
            ["Phase 7 over", "Phase 7 outer", "Phase 8 other thread", "step", "Mark 7 moment 3", "step"];
        assert_eq!(flush(&pending, 1), (expected.map(str::to_owned).to_vec(), 0));
        assert!(!pending.has_any());
        assert_eq!(flush(&pending, 1), (Vec::new(), 0));
        assert!(!pending.end_phase((1, 7), || panic!("the phase is recorded")));
    }

    #[test]
    fn marker_enqueued_during_start_is_recorded_by_its_own_thread() {
        let pending = PendingMarkers::new();
        let name = EventName::literal(b"late");
        assert_eq!(pending.enqueue(MarkerKind::Mark, (1, 1), &name, || true), Enqueued::TooLate);
        assert_eq!(flush(&pending, 1), (Vec::new(), 0));
        assert_eq!(pending.add_step(1, || true), 1);
        assert_eq!(flush(&pending, 1), (Vec::new(), 0));
        // Another thread has taken the slot, and releases it while `end_phase` waits.
        enqueue(&pending, MarkerKind::Phase, (1, 1), "taken");
        let slot = pending.first_open().unwrap();
        assert!(slot.take());
        let mut waits = 0;
        let was_pending = pending.end_phase((1, 1), || {
            waits += 1;
            pending.release(slot);
            true
        });
        assert_eq!((was_pending, waits), (false, 1));
    }

    #[test]
    fn markers_beyond_the_table_are_counted_and_their_ends_match() {
        let pending = PendingMarkers::new();
        (0..SLOTS + 2).for_each(|number| enqueue(&pending, MarkerKind::Phase, (1, 1), &format!("p{number}")));
        enqueue(&pending, MarkerKind::Mark, (1, 1), "no slot");
        assert!(pending.end_phase((1, 1), || false));
        (0..=MAX_STEPS).for_each(|_| assert_eq!(pending.add_step(1, || false), 0));
        let (texts, lost) = flush(&pending, 1);
        assert_eq!((texts.len() as u64, lost), (SLOTS as u64 + MAX_STEPS, 3));
        assert_eq!(texts[SLOTS - 1], format!("Phase 1 p{}", SLOTS - 1));
        // This ends the phase that found no slot, not the one before it.
        assert!(pending.has_any() && pending.end_phase((1, 1), || false) && !pending.has_any());
    }

    #[test]
    fn forked_child_discards_the_markers_of_its_parent() {
        let pending = PendingMarkers::new();
        enqueue(&pending, MarkerKind::Phase, (1, 1), "of the parent");
        pending.add_step(1, || false);
        pending.add_step(2, || false);
        enqueue(&pending, MarkerKind::Mark, (2, 2), "of the child");
        assert_eq!(flush(&pending, 2).0, ["step", "Mark 2 of the child"]);
    }
}
