//! Observes the loops of a Python program in its allocations.
//!
//! If a thread's next allocation is at an earlier instruction of the same function, below the same
//! callers, a loop has gone round: it *lands* at the earlier place. The function is the innermost
//! one that both stacks share. So a loop over layers lands in the model's code, and the loop over
//! batches around it in its caller's. Sizes do not matter, and neither does timing.
//! [`super::outermost_loop`] finds the loop whose iterations are steps.

use std::cmp::Ordering;

use gpumemtrace_format::ThreadId;

use crate::callsite::call_paths::{CallPaths, FrameId, PathId};
use crate::util::seeded_map::SeededMap;

/// An allocation of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopEvent {
    /// Index among all allocations of the run.
    pub(super) index: usize,
    pub(super) path: PathId,
    /// Where a loop landed with it.
    pub(super) landing: Option<PathId>,
    /// The outermost place of the last allocation's stack to which its calls had returned when the
    /// thread freed something since.
    pub(super) returned_to: Option<PathId>,
    /// The thread freed something since its last allocation.
    follows_free: bool,
}

/// The allocations of one thread.
#[derive(Debug, Default)]
pub(super) struct ThreadLoops {
    pub(super) events: Vec<LoopEvent>,
    follows_free: bool,
    returned_to: Option<PathId>,
    /// The last place in functions that were left for another one below the same call.
    left: SeededMap<FrameId, PathId>,
}

impl ThreadLoops {
    fn find_landing(&mut self, path: PathId, paths: &CallPaths) -> Option<PathId> {
        let last = self.events.last()?.path;
        let fork = paths.fork(last, path)?;
        match paths.order(fork.before, fork.after) {
            Some(Ordering::Greater) => Some(fork.after),
            Some(_) => None,
            None => {
                self.left.insert(paths.frame(fork.before).frame, fork.before);
                let left = self.left.get(&paths.frame(fork.after).frame)?;
                paths.order(*left, fork.after)?.is_ge().then_some(fork.after)
            }
        }
    }

    /// Observes where the thread is. Its calls since the last allocation have returned up to there.
    fn observe_return(&mut self, path: PathId, paths: &CallPaths) {
        let Some(last) = self.events.last() else { return };
        if last.path == path {
            return;
        }
        // Where they part, the function has gone on to another instruction, or is gone itself.
        let place = paths.fork(last.path, path).map_or(path, |fork| fork.before);
        let depth = |place: PathId| paths.frame(place).depth;
        if depth(place) < depth(last.path) && self.returned_to.is_none_or(|known| depth(place) < depth(known))
        {
            self.returned_to = Some(place);
        }
    }

    /// Counts repetitions of one allocation as landings if frees come between most of them.
    fn mark_repetitions(&mut self) {
        let mut from = 0;
        while from < self.events.len() {
            let path = self.events[from].path;
            let len = self.events[from..].iter().take_while(|event| event.path == path).count();
            let repeated = &mut self.events[from + 1..from + len];
            let frees = repeated.iter().filter(|event| event.follows_free).count();
            if frees * 2 >= repeated.len() {
                for event in repeated {
                    event.landing = Some(path);
                }
            }
            from += len;
        }
    }
}

/// Records the allocations of each thread or task.
#[derive(Debug, Default)]
pub(super) struct LoopDetector {
    /// In the order of their first allocations; also tasks.
    threads: Vec<ThreadLoops>,
    by_id: SeededMap<Runner, usize>,
    /// The thread or task of the last event.
    last: Option<(Runner, usize)>,
}

/// A thread, or on it a task of asyncio, which another one may interrupt.
type Runner = (ThreadId, Option<FrameId>);

impl LoopDetector {
    /// Observes an allocation. `index` is its number among all allocations of the run.
    pub(super) fn on_allocation(&mut self, thread: ThreadId, index: usize, path: PathId, paths: &CallPaths) {
        let runner = (thread, paths.frame(path).task);
        let number = match self.last {
            Some((last, number)) if last == runner => number,
            _ => {
                let next = self.threads.len();
                *self.by_id.entry(runner).or_insert(next)
            }
        };
        if number == self.threads.len() {
            self.threads.push(ThreadLoops::default());
        }
        self.last = Some((runner, number));
        let state = &mut self.threads[number];
        let landing = state.find_landing(path, paths);
        let follows_free = std::mem::take(&mut state.follows_free);
        let returned_to = state.returned_to.take();
        state.events.push(LoopEvent { index, path, landing, returned_to, follows_free });
    }

    /// Observes a free by this thread. `path` is that of its stack, if it has one of its own.
    #[inline]
    pub(super) fn on_free(&mut self, thread: ThreadId, path: Option<PathId>, paths: &CallPaths) {
        let runner = (thread, path.and_then(|path| paths.frame(path).task));
        let number = match self.last {
            Some((last, number)) if last == runner => Some(number),
            _ => self.by_id.get(&runner).copied(),
        };
        if let Some(number) = number {
            let state = &mut self.threads[number];
            state.follows_free = true;
            if let Some(path) = path {
                state.observe_return(path, paths);
            }
        }
    }

    /// Number of observed allocations.
    pub(super) fn allocations(&self) -> usize {
        self.threads.iter().map(|thread| thread.events.len()).sum()
    }

    /// The allocations of all threads, with the landings of loops.
    pub(super) fn finish_threads(&mut self) -> &[ThreadLoops] {
        self.threads.iter_mut().for_each(ThreadLoops::mark_repetitions);
        &self.threads
    }
}
