//! Counts how often a program calls its models.
//!
//! The layers of one model repeat like the rounds of a loop. Only what lies between two calls tells
//! them apart: an allocation or free outside of the model, such as that of the next input. A loop
//! inside a model that was called fewer times than the loop goes round has layers or time steps
//! for rounds, and memory that grows in it is held by one call.
//!
//! Calls of one line with nothing between them count as one, so this is the least number of calls.
//! What occurs once in a call bounds their number from above: a model has code before or after its
//! layers. If nearly all of its code ran as often as a loop went round, the rounds may be calls.

use gpumemtrace_format::ThreadId;

use crate::callsite::call_paths::{CallPaths, PathId};
use crate::util::seeded_map::SeededMap;

/// Share of a model's code that runs in each of its calls. Some of it may run in the first only.
const MIN_RECURRING_SHARE: f64 = 0.9;

/// Calls that are a loop, however many rounds there seem to be.
const MANY_CALLS: f64 = 8.0;

/// The calls of modules that no other module calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModuleCalls {
    by_path: SeededMap<PathId, Calls>,
    /// The call that each thread's last event was in.
    current: SeededMap<ThreadId, PathId>,
}

/// The calls from one line.
#[derive(Clone, Debug, Default)]
struct Calls {
    /// The least number of calls.
    count: u64,
    /// Events inside the calls, by path.
    events: SeededMap<PathId, u64>,
}

impl ModuleCalls {
    /// Observes an allocation or free with a Python stack.
    #[inline]
    pub(crate) fn on_event(&mut self, thread: ThreadId, path: PathId, paths: &CallPaths) {
        match paths.frame(path).module_call {
            Some(call) => {
                let calls = self.by_path.entry(call).or_default();
                *calls.events.entry(path).or_default() += 1;
                if self.current.insert(thread, call) != Some(call) {
                    calls.count += 1;
                }
            }
            None => {
                self.current.remove(&thread);
            }
        }
    }

    /// Observes an event of a backward pass, which no call of a module contains.
    #[inline]
    pub(crate) fn on_backward(&mut self) {
        self.current.clear();
    }

    /// The least number of calls from the line that calls a module most often.
    pub(crate) fn most_calls(&self) -> u64 {
        self.by_path.values().map(|calls| calls.count).max().unwrap_or(0)
    }

    /// True if `path` is inside a module that may have been called fewer than `rounds` times.
    pub(crate) fn may_be_fewer_than(&self, rounds: u64, path: PathId, paths: &CallPaths) -> bool {
        let call = paths.frame(path).module_call;
        call.is_some_and(|call| self.by_path.get(&call).is_none_or(|calls| calls.count < rounds))
    }

    /// Whether `path` is inside a module that was called fewer times than the rounds. Many calls in
    /// the time of the rounds are a loop, too: rounds may be shorter than a call.
    pub(crate) fn has_fewer_than(&self, rounds: Rounds, path: PathId, paths: &CallPaths) -> FewerCalls {
        let Rounds { count: rounds, share_of_run } = rounds;
        if !self.may_be_fewer_than(rounds, path, paths) {
            return FewerCalls::No;
        }
        let calls = paths.frame(path).module_call.and_then(|call| self.by_path.get(&call));
        if calls.is_some_and(|calls| calls.count as f64 * share_of_run >= MANY_CALLS) {
            return FewerCalls::No;
        }
        let counts = || calls.into_iter().flat_map(|calls| calls.events.values());
        let often = counts().filter(|count| **count >= rounds).count();
        if often as f64 >= MIN_RECURRING_SHARE * counts().count() as f64 {
            FewerCalls::Maybe
        } else {
            FewerCalls::Yes
        }
    }
}

/// What repeats in a run without steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    pub(crate) count: u64,
    /// The part of the run in which they are.
    pub(crate) share_of_run: f64,
}

/// Whether a model was called fewer times than a loop went round.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum FewerCalls {
    No,
    Maybe,
    Yes,
}
