//! Finds the end of the program: the moment before interpreter teardown.
//!
//! Definition: the end is the moment before the first free of the trailing events that do not
//! belong to the program. An event belongs to the program if it
//!
//! - has a Python stack on the main thread that begins with the main module, or with a function
//!   that began an allocating stack before (an embedded interpreter, greenlets);
//! - has a Python stack on another thread: CPython waits for threads before teardown;
//! - allocates without a Python stack (autograd's threads, C++).
//!
//! Teardown has none of these. CPython clears modules without a frame, and calls `__del__` methods
//! and `atexit` handlers as outermost frames ([`crate::callsite::stack_root`]). In a run without
//! any Python stack, the end is the moment before the last frees.
//!
//! A possible end is set at a free and withdrawn when the program goes on, so memory is constant.
//! Most events belong to the main module and cost one comparison.
//! `tests/suite/analysis/test_program_end.py` compares the result with PyTorch.

use gpumemtrace_format::{Event, EventKind, NodeId, ThreadId};

use crate::callsite::stack_root::StackRoot;
use crate::event_analysis::EventTime;
use crate::report::{EndMoment, Ending};

/// The end of the program in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramEnd {
    /// The last event before it, and the number of steps begun.
    pub time: EventTime,
    /// Sequence number of the first event after it; `None` if no event follows.
    pub next_seq: Option<u64>,
    pub moment: EndMoment,
}

/// What an event means for the end of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndChange {
    /// A possible end is the moment before this event.
    Set,
    /// The program went on after the possible end.
    Withdrawn,
}

/// Watches for the end of the program.
#[derive(Debug)]
pub(super) struct EndDetector {
    /// The first thread of the process, by which Linux names the process.
    first_thread: Option<ThreadId>,
    main: Option<ThreadId>,
    has_python: bool,
    /// Roots that began an allocating stack on the main thread, by their index.
    known_roots: Vec<bool>,
    /// The possible end: its time, and the number of the event after it.
    candidate: Option<(EventTime, u64)>,
    /// The root of events that change nothing: that of the main module, or
    /// [`StackRoot::NEVER`] while there is a possible end.
    ignored: StackRoot,
}

impl EndDetector {
    pub(super) fn new(pid: Option<u64>) -> Self {
        Self {
            first_thread: pid.and_then(|pid| u32::try_from(pid).ok()).map(ThreadId),
            main: None,
            has_python: false,
            known_roots: Vec::new(),
            candidate: None,
            ignored: StackRoot::NEVER,
        }
    }

    /// Takes note of the thread of the next event.
    pub(super) fn on_thread(&mut self, thread: ThreadId) {
        if self.main.is_none() || self.first_thread == Some(thread) {
            self.main = Some(thread);
        }
    }

    /// True if an event with this root cannot change the end.
    #[inline]
    pub(super) fn ignores(&self, root: StackRoot) -> bool {
        self.ignored == root
    }

    /// Takes an event before it is applied. `root` is that of its stack, `before` the time of the
    /// event before it.
    pub(super) fn on_event(
        &mut self,
        event: &Event,
        root: StackRoot,
        before: EventTime,
    ) -> Option<EndChange> {
        let is_main = self.main == Some(event.thread);
        let change = if event.python_stack == NodeId::NONE {
            match () {
                () if is_allocation(event.kind) => self.withdraw(),
                () if is_free(event.kind) && (is_main || !self.has_python) => self.set(event, before),
                () => None,
            }
        } else {
            self.has_python = true;
            if !is_main || self.is_program_root(event, root) {
                self.withdraw()
            } else if is_free(event.kind) {
                self.set(event, before)
            } else {
                None
            }
        };
        let is_settled = self.has_python && self.candidate.is_none();
        self.ignored = if is_settled { StackRoot::MODULE } else { StackRoot::NEVER };
        change
    }

    /// True if the root belongs to the program. Learns the roots of allocations.
    fn is_program_root(&mut self, event: &Event, root: StackRoot) -> bool {
        if root == StackRoot::MODULE || self.known_roots.get(root.index()) == Some(&true) {
            return true;
        }
        let is_learned = self.candidate.is_none() && is_allocation(event.kind);
        if is_learned {
            self.known_roots.resize(self.known_roots.len().max(root.index() + 1), false);
            self.known_roots[root.index()] = true;
        }
        is_learned
    }

    fn set(&mut self, event: &Event, before: EventTime) -> Option<EndChange> {
        if self.candidate.is_some() {
            return None;
        }
        self.candidate = Some((before, event.seq));
        Some(EndChange::Set)
    }

    fn withdraw(&mut self) -> Option<EndChange> {
        self.candidate.take().map(|_| EndChange::Withdrawn)
    }

    /// Forgets a possible end: the analysed part of the run begins here.
    pub(super) fn restart(&mut self) {
        self.candidate = None;
        self.ignored = StackRoot::NEVER;
    }

    /// The end of the program, and true if it is the possible end that was set last. `was_stopped`
    /// if the recording ended before the process. `last` is the time of the last event.
    pub(super) fn finish(&self, ending: Ending, was_stopped: bool, last: EventTime) -> (ProgramEnd, bool) {
        let is_whole = match ending {
            _ if was_stopped => false,
            Ending::Exit => true,
            // Without Python stacks, frees before a crash are no sign of the end.
            Ending::Crashed => self.has_python,
            Ending::Killed | Ending::Running => false,
        };
        match self.candidate.filter(|_| is_whole) {
            Some((time, next_seq)) => {
                let moment =
                    if self.has_python { EndMoment::BeforeTeardown } else { EndMoment::BeforeLastFrees };
                (ProgramEnd { time, next_seq: Some(next_seq), moment }, true)
            }
            None => (ProgramEnd { time: last, next_seq: None, moment: EndMoment::LastEvent }, false),
        }
    }
}

/// True for events that only a running program causes.
fn is_allocation(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::BLOCK_ALLOC
            | EventKind::BLOCK_OOM
            | EventKind::DEVICE_ALLOC
            | EventKind::MANAGED_ALLOC
            | EventKind::HOST_ALLOC
            | EventKind::ASYNC_ALLOC
            | EventKind::PHYS_CREATE
            | EventKind::ARRAY_ALLOC
            | EventKind::GRAPH_LAUNCH
    )
}

/// True for events that give memory back.
fn is_free(kind: EventKind) -> bool {
    matches!(kind, EventKind::BLOCK_FREE | EventKind::SEGMENT_FREE | EventKind::SEGMENT_UNMAP)
        || kind.is_ordered_before_call()
}

#[cfg(test)]
mod tests {
    use super::*;
    use EventKind as Kind;

    const MAIN: u32 = 10;
    const WORKER: u32 = 11;
    const HANDLER: StackRoot = StackRoot::test_function(0);
    const GREENLET: StackRoot = StackRoot::test_function(1);

    /// The index of the event before which the program ended, after events of a thread, kind and
    /// root.
    fn end_of(events: &[(u32, EventKind, StackRoot)], ending: Ending) -> (Option<u64>, EndMoment) {
        let mut detector = EndDetector::new(Some(u64::from(MAIN)));
        for ((thread, kind, root), seq) in events.iter().zip(0..) {
            let python_stack = if *root == StackRoot::NONE { NodeId::NONE } else { NodeId(1) };
            let event = Event { seq, thread: ThreadId(*thread), python_stack, ..Event::new(*kind) };
            detector.on_thread(event.thread);
            if !detector.ignores(*root) {
                detector.on_event(&event, *root, EventTime::default());
            }
        }
        let (end, is_candidate) = detector.finish(ending, false, EventTime::default());
        assert_eq!(is_candidate, end.next_seq.is_some());
        (end.next_seq, end.moment)
    }

    fn end_of_exit(events: &[(u32, EventKind, StackRoot)]) -> Option<u64> {
        end_of(events, Ending::Exit).0
    }

    #[test]
    fn program_ends_before_the_first_free_of_teardown() {
        let program =
            [(MAIN, Kind::BLOCK_ALLOC, StackRoot::MODULE), (MAIN, Kind::BLOCK_FREE, StackRoot::MODULE)];
        assert_eq!(end_of(&program, Ending::Exit), (None, EndMoment::LastEvent));
        let cleared = [program[0], program[1], (MAIN, Kind::BLOCK_FREE, StackRoot::NONE)];
        assert_eq!(end_of(&cleared, Ending::Exit), (Some(2), EndMoment::BeforeTeardown));
        assert_eq!(end_of(&cleared, Ending::Crashed), (Some(2), EndMoment::BeforeTeardown));
        assert_eq!(end_of(&cleared, Ending::Killed), (None, EndMoment::LastEvent));
        let handler = [
            program[0],
            (MAIN, Kind::BLOCK_FREE, HANDLER),
            (MAIN, Kind::BLOCK_ALLOC, HANDLER),
            (MAIN, Kind::BLOCK_FREE, StackRoot::NONE),
        ];
        assert_eq!(end_of_exit(&handler), Some(1));
    }

    #[test]
    fn possible_end_is_withdrawn_when_the_program_goes_on() {
        let before =
            [(MAIN, Kind::BLOCK_ALLOC, StackRoot::MODULE), (MAIN, Kind::BLOCK_FREE, StackRoot::NONE)];
        for sign in [
            (MAIN, Kind::BLOCK_FREE, StackRoot::MODULE),
            (MAIN, Kind::MARK, StackRoot::MODULE),
            (WORKER, Kind::BLOCK_FREE, HANDLER),
            (WORKER, Kind::BLOCK_ALLOC, StackRoot::NONE),
            (MAIN, Kind::DEVICE_ALLOC, StackRoot::NONE),
        ] {
            let events = [before[0], before[1], sign, (MAIN, Kind::BLOCK_FREE, StackRoot::NONE)];
            assert_eq!(end_of_exit(&events), Some(3), "{sign:?}");
        }
        for no_sign in [
            (WORKER, Kind::BLOCK_FREE, StackRoot::NONE),
            (WORKER, Kind::MEMORY_SAMPLE, StackRoot::NONE),
            (MAIN, Kind::BLOCK_ALLOC, HANDLER),
        ] {
            let events = [before[0], before[1], no_sign, (MAIN, Kind::BLOCK_FREE, StackRoot::NONE)];
            assert_eq!(end_of_exit(&events), Some(1), "{no_sign:?}");
        }
    }

    #[test]
    fn frees_of_autograd_threads_are_no_teardown() {
        let events = [
            (MAIN, Kind::BLOCK_ALLOC, StackRoot::MODULE),
            (WORKER, Kind::BLOCK_FREE, StackRoot::NONE),
            (MAIN, Kind::BLOCK_FREE, StackRoot::NONE),
        ];
        assert_eq!(end_of_exit(&events), Some(2));
        assert_eq!(end_of_exit(&events[..2]), None);
    }

    #[test]
    fn functions_that_allocate_as_outermost_frame_are_the_program() {
        let events = [
            (MAIN, Kind::BLOCK_ALLOC, StackRoot::MODULE),
            (MAIN, Kind::BLOCK_ALLOC, GREENLET),
            (MAIN, Kind::BLOCK_FREE, GREENLET),
            (MAIN, Kind::BLOCK_FREE, GREENLET),
            (MAIN, Kind::BLOCK_FREE, StackRoot::NONE),
        ];
        assert_eq!(end_of_exit(&events), Some(4));
    }

    #[test]
    fn run_without_python_ends_before_its_last_frees_on_any_thread() {
        let events = [
            (MAIN, Kind::DEVICE_ALLOC, StackRoot::NONE),
            (MAIN, Kind::DEVICE_FREE, StackRoot::NONE),
            (WORKER, Kind::DEVICE_ALLOC, StackRoot::NONE),
            (WORKER, Kind::DEVICE_FREE, StackRoot::NONE),
            (MAIN, Kind::DEVICE_FREE, StackRoot::NONE),
        ];
        assert_eq!(end_of(&events, Ending::Exit), (Some(3), EndMoment::BeforeLastFrees));
        assert_eq!(end_of(&events, Ending::Crashed), (None, EndMoment::LastEvent));
    }

    #[test]
    fn main_thread_without_python_stacks_before_teardown_is_found_by_pid() {
        let events = [
            (WORKER, Kind::BLOCK_ALLOC, HANDLER),
            (WORKER, Kind::BLOCK_FREE, HANDLER),
            (MAIN, Kind::BLOCK_FREE, GREENLET),
            (MAIN, Kind::BLOCK_FREE, StackRoot::NONE),
        ];
        assert_eq!(end_of_exit(&events), Some(2));
    }
}
