//! What a program says before there is anything to record it in.
//!
//! Constraint: to say something is no use of a GPU and must begin no recording, so that a process that never uses one leaves no file; but
//! a phase that lasts when the first GPU call is made is part of the run. Consequence: what is said until then is kept in one
//! small fixed table, and the thread that starts the recording puts it in front of its first event. Nothing is allocated, nobody waits
//! for longer than that thread takes to write it, and what does not fit is counted as dropped.
//!
//! Who says something while another thread starts the recording does one of two: it takes its own entry back and records it itself,
//! or finds that it has been recorded. An entry that says it is open was seen by one of both ([`PendingMarker::take`]).

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::hot::name::EventName;

/// Phases that are open and marks, together.
const PLACES: usize = 64;
/// Steps that are recorded one by one; nobody waits for more.
const MOST_STEPS: u64 = 1 << 16;

/// Something that was said and has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum MarkerKind {
    /// A phase began, and lasts.
    Phase = 1,
    /// A moment.
    Mark = 2,
}

const FREE: u32 = 0;
const WRITING: u32 = 1;
const OPEN: u32 = 2;
const TAKEN: u32 = 3;

struct PendingMarker {
    state: AtomicU32,
    what: AtomicU32,
    thread: AtomicU32,
    /// How many steps had begun.
    steps: AtomicU64,
    /// Its place among all that was said.
    order: AtomicU64,
    name: UnsafeCell<EventName>,
}

// SAFETY: the name is written by whoever made the entry `WRITING`, and read by whoever made it `TAKEN`, from `OPEN`: one at a time.
unsafe impl Sync for PendingMarker {}

/// What is said now, of a process.
pub(crate) struct PendingMarkers {
    /// Whose all of this is: in a child of `fork` it is its parent's, and nothing.
    pid: AtomicU32,
    /// How many entries there are, so that who has none need not look.
    used: AtomicU32,
    steps: AtomicU64,
    order: AtomicU64,
    /// Open phases that had no place.
    lost_phases: AtomicU32,
    lost_marks: AtomicU32,
    entries: [PendingMarker; PLACES],
}

/// Of this process.
pub(crate) static PENDING: PendingMarkers = PendingMarkers::new();

impl PendingMarker {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            what: AtomicU32::new(0),
            thread: AtomicU32::new(0),
            steps: AtomicU64::new(0),
            order: AtomicU64::new(0),
            name: UnsafeCell::new(EventName::EMPTY),
        }
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// True for the one that may have it, of who said it and who records it.
    fn take(&self) -> bool {
        self.change(OPEN, TAKEN)
    }
}

/// What becomes of an entry once it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Enqueued {
    /// It is recorded with the first event.
    Yes,
    /// The recording has begun meanwhile without it: it is recorded as usual.
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
            entries: [const { PendingMarker::new() }; PLACES],
        }
    }

    /// Forgets what a parent said.
    fn of_process(&self, pid: u32) {
        if self.pid.load(Ordering::Relaxed) == pid || self.pid.swap(pid, Ordering::AcqRel) == pid {
            return;
        }
        for entry in &self.entries {
            entry.state.store(FREE, Ordering::SeqCst);
        }
        for number in [&self.used, &self.lost_phases, &self.lost_marks] {
            number.store(0, Ordering::SeqCst);
        }
        self.steps.store(0, Ordering::SeqCst);
    }

    /// A step begins. How many there are to record, where somebody has started the recording by now.
    pub(crate) fn step(&self, pid: u32, is_recorded: impl Fn() -> bool) -> u64 {
        self.of_process(pid);
        self.steps.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if is_recorded() { self.steps.swap(0, Ordering::SeqCst).min(MOST_STEPS) } else { 0 }
    }

    /// Something is said. `is_recorded` tells whether somebody has started the recording by now.
    pub(crate) fn keep(
        &self,
        what: MarkerKind,
        (pid, thread): (u32, u32),
        name: &EventName,
        is_recorded: impl Fn() -> bool,
    ) -> Enqueued {
        self.of_process(pid);
        let Some(entry) = self.entries.iter().find(|entry| entry.change(FREE, WRITING)) else {
            let lost = if what == MarkerKind::Phase { &self.lost_phases } else { &self.lost_marks };
            lost.fetch_add(1, Ordering::SeqCst);
            return Enqueued::Yes;
        };
        entry.what.store(what as u32, Ordering::Relaxed);
        entry.thread.store(thread, Ordering::Relaxed);
        entry.steps.store(self.steps.load(Ordering::SeqCst), Ordering::Relaxed);
        entry.order.store(self.order.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        // SAFETY: the entry is `WRITING`, and it was this thread that made it so.
        unsafe { entry.name.get().write(*name) };
        self.used.fetch_add(1, Ordering::SeqCst);
        entry.state.store(OPEN, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if is_recorded() && entry.take() {
            self.give_back(entry);
            return Enqueued::TooLate;
        }
        Enqueued::Yes
    }

    /// True while there may be a phase that began before the recording and is not in it yet.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.used.load(Ordering::SeqCst) > 0 || self.lost_phases.load(Ordering::SeqCst) > 0
    }

    /// The phase that this thread began last ends; true if it was one that nobody has recorded, and nobody will. `wait` lets go of the
    /// processor.
    pub(crate) fn end_phase(&self, (pid, thread): (u32, u32), mut wait: impl FnMut() -> bool) -> bool {
        self.of_process(pid);
        // What had no place began after all that had one.
        let one_less = |lost: u32| lost.checked_sub(1);
        if self.lost_phases.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            return true;
        }
        loop {
            let is_own = |entry: &&PendingMarker| {
                matches!(entry.state.load(Ordering::SeqCst), OPEN | TAKEN)
                    && entry.what.load(Ordering::Relaxed) == MarkerKind::Phase as u32
                    && entry.thread.load(Ordering::Relaxed) == thread
            };
            let last =
                self.entries.iter().filter(is_own).max_by_key(|entry| entry.order.load(Ordering::Relaxed));
            let Some(entry) = last else { return false };
            if entry.take() {
                self.give_back(entry);
                return true;
            }
            // It is being recorded at this moment: its end comes after it.
            if !wait() {
                return false;
            }
        }
    }

    /// The recording has started: hands out everything, in the order in which it was said, once.
    pub(crate) fn hand_out(&self, pid: u32, recorder: &mut dyn MarkerSink) {
        self.of_process(pid);
        // Who says something from here on sees that it is recorded.
        fence(Ordering::SeqCst);
        let mut told = 0;
        while let Some(entry) = self.first_open() {
            if !entry.take() {
                continue;
            }
            told = tell_steps(told, entry.steps.load(Ordering::Relaxed), recorder);
            let what = if entry.what.load(Ordering::Relaxed) == MarkerKind::Phase as u32 {
                MarkerKind::Phase
            } else {
                MarkerKind::Mark
            };
            // SAFETY: the entry is `TAKEN`, and it was this thread that made it so.
            let name = unsafe { &*entry.name.get() };
            recorder.named(what, entry.thread.load(Ordering::Relaxed), name);
            self.give_back(entry);
        }
        let all = self.steps.swap(0, Ordering::SeqCst);
        tell_steps(told, all, recorder);
        let lost = self.lost_phases.load(Ordering::SeqCst) + self.lost_marks.swap(0, Ordering::SeqCst);
        recorder.lost(u64::from(lost) + all.saturating_sub(MOST_STEPS));
    }

    fn first_open(&self) -> Option<&PendingMarker> {
        let open = self.entries.iter().filter(|entry| entry.state.load(Ordering::SeqCst) == OPEN);
        open.min_by_key(|entry| entry.order.load(Ordering::Relaxed))
    }

    fn give_back(&self, entry: &PendingMarker) {
        entry.state.store(FREE, Ordering::SeqCst);
        self.used.fetch_sub(1, Ordering::SeqCst);
    }
}

fn tell_steps(told: u64, until: u64, recorder: &mut dyn MarkerSink) -> u64 {
    let until = until.min(MOST_STEPS).max(told);
    (told..until).for_each(|_| recorder.step());
    until
}

/// Who records what was said.
pub(crate) trait MarkerSink {
    /// A step began.
    fn step(&mut self);
    /// A phase began, or a mark was made, by this thread.
    fn named(&mut self, what: MarkerKind, thread: u32, name: &EventName);
    /// So much was said and is not kept.
    fn lost(&mut self, count: u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct CollectedMarkers(Vec<String>, u64);

    impl MarkerSink for CollectedMarkers {
        fn step(&mut self) {
            self.0.push("step".to_owned());
        }

        fn named(&mut self, what: MarkerKind, thread: u32, name: &EventName) {
            self.0.push(format!("{what:?} {thread} {}", String::from_utf8_lossy(name.text())));
        }

        fn lost(&mut self, count: u64) {
            self.1 += count;
        }
    }

    fn written(said: &PendingMarkers, pid: u32) -> (Vec<String>, u64) {
        let mut written = CollectedMarkers::default();
        said.hand_out(pid, &mut written);
        (written.0, written.1)
    }

    fn keep(said: &PendingMarkers, what: MarkerKind, who: (u32, u32), name: &str) {
        assert_eq!(said.keep(what, who, &EventName::literal(name.as_bytes()), || false), Enqueued::Yes);
    }

    #[test]
    fn everything_that_lasts_is_handed_out_once_in_order() {
        let said = PendingMarkers::new();
        keep(&said, MarkerKind::Phase, (1, 7), "over");
        keep(&said, MarkerKind::Phase, (1, 7), "outer");
        keep(&said, MarkerKind::Phase, (1, 8), "other thread");
        keep(&said, MarkerKind::Phase, (1, 7), "inner");
        assert_eq!(said.step(1, || false), 0);
        keep(&said, MarkerKind::Mark, (1, 7), "moment 3");
        said.step(1, || false);
        assert!(said.has_any());
        assert!(said.end_phase((1, 7), || panic!("nobody is recording it")));
        assert!(!said.end_phase((1, 9), || panic!("it has none")));
        let expected =
            ["Phase 7 over", "Phase 7 outer", "Phase 8 other thread", "step", "Mark 7 moment 3", "step"];
        assert_eq!(written(&said, 1), (expected.map(str::to_owned).to_vec(), 0));
        assert!(!said.has_any());
        assert_eq!(written(&said, 1), (Vec::new(), 0));
        assert!(!said.end_phase((1, 7), || panic!("it is recorded")));
    }

    #[test]
    fn what_is_said_while_the_recording_starts_is_recorded_by_who_says_it() {
        let said = PendingMarkers::new();
        let name = EventName::literal(b"late");
        assert_eq!(said.keep(MarkerKind::Mark, (1, 1), &name, || true), Enqueued::TooLate);
        assert_eq!(written(&said, 1), (Vec::new(), 0));
        assert_eq!(said.step(1, || true), 1);
        assert_eq!(written(&said, 1), (Vec::new(), 0));
        // Somebody has it in hand, and is done before the patience of the other is over.
        keep(&said, MarkerKind::Phase, (1, 1), "in hand");
        let entry = said.first_open().unwrap();
        assert!(entry.take());
        let mut waits = 0;
        let ended = said.end_phase((1, 1), || {
            waits += 1;
            said.give_back(entry);
            true
        });
        assert_eq!((ended, waits), (false, 1));
    }

    #[test]
    fn what_does_not_fit_is_counted_and_its_ends_are_its_own() {
        let said = PendingMarkers::new();
        (0..PLACES + 2).for_each(|number| keep(&said, MarkerKind::Phase, (1, 1), &format!("p{number}")));
        keep(&said, MarkerKind::Mark, (1, 1), "no place");
        assert!(said.end_phase((1, 1), || false));
        (0..=MOST_STEPS).for_each(|_| assert_eq!(said.step(1, || false), 0));
        let (texts, lost) = written(&said, 1);
        assert_eq!((texts.len() as u64, lost), (PLACES as u64 + MOST_STEPS, 3));
        assert_eq!(texts[PLACES - 1], format!("Phase 1 p{}", PLACES - 1));
        // The end of the one that had no place is not that of the one before it.
        assert!(said.has_any() && said.end_phase((1, 1), || false) && !said.has_any());
    }

    #[test]
    fn a_child_knows_nothing_of_what_its_parent_said() {
        let said = PendingMarkers::new();
        keep(&said, MarkerKind::Phase, (1, 1), "of the parent");
        said.step(1, || false);
        said.step(2, || false);
        keep(&said, MarkerKind::Mark, (2, 2), "of the child");
        assert_eq!(written(&said, 2).0, ["step", "Mark 2 of the child"]);
    }
}
