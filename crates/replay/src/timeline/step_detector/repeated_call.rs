//! Finds the call that a loop makes once in each iteration, if iterations take different paths.
//!
//! A server's loop calls `handle(request)` or `handlers[kind](request)`, and each kind of request
//! allocates elsewhere, so no allocation occurs in each iteration ([`super::outermost_loop`]). But
//! after a request, its thread frees memory with a stack that ends in the loop itself: mostly the
//! result of the request. So the call has returned, and the next allocation below the same
//! instruction begins another call.
//!
//! A loop over the stages of one iteration, or over layers, looks the same:
//! `for stage in stages: stage(batch)`. There, the order is fixed, so a stage hardly ever follows
//! itself. Requests come in any order. So the kinds of calls, by their first allocation, must
//! follow themselves as often as in a random order, after any number of calls up to [`MAX_LAG`].
//! They may follow themselves more often: requests come in bursts.
//!
//! A return without such a free is not seen, and a suspended coroutine looks like one. Both show in
//! what calls begin with: two calls that look like one have the first allocation of a call in the
//! middle of another, and a call that looks like two begins in the middle. If that happens, calls
//! cannot be counted, and no steps are better than a wrong number. The same holds if the loop also
//! allocates elsewhere: `if` and `elif` look like two calls in a row.

use crate::callsite::call_paths::{CallPaths, PathFrame, PathId};
use crate::timeline::step_detector::loop_detector::{LoopEvent, ThreadLoops};
use crate::timeline::step_detector::outermost_loop::{Landings, MIN_SHARE, allocations_below};
use crate::util::seeded_map::{SeededMap, SeededSet};

/// At most one call in this many may begin with an allocation that other calls have later.
const EXCEPTION_SHARE: usize = 100;
/// Calls are compared with those up to this many calls later.
const MAX_LAG: usize = 16;
/// If chance lets a kind follow itself less often, its order is not known.
const MIN_EXPECTED: f64 = 5.0;
/// Standard deviations below chance from which a kind seems not to follow itself: directly, and
/// after more calls, which is tried many times.
const RARE_DEVIATIONS: [f64; 2] = [2.2, 3.0];
/// Kinds in an unknown order make at most this share of the calls.
const MAX_UNKNOWN_SHARE: f64 = 0.05;
/// The most frequent kind makes at most this share of the calls.
const MAX_KIND_SHARE: f64 = 0.9;

/// The call of the outermost loop. `allocations` is the number of all allocations of the run.
pub(super) fn find_repeated_call(
    threads: &[ThreadLoops],
    allocations: usize,
    paths: &CallPaths,
) -> Option<PathId> {
    let below = allocations_below(threads, paths);
    let all: usize = threads.iter().map(|thread| thread.events.len()).sum();
    let repetitions = find_repetitions(threads, paths);
    let covering = repetitions.iter().filter(|(place, repetitions)| {
        !paths.frame(**place).is_wrapper
            && below[place.0 as usize] * MIN_SHARE >= all
            && repetitions.cover_run(allocations)
    });
    let place = covering.min_by_key(|(place, calls)| (paths.frame(**place).depth, calls.first));
    let place = *place?.0;
    // A few repetitions of the loop itself: the loop around it is not known.
    if paths.callers(place).any(|caller| repetitions.contains_key(&caller)) {
        return None;
    }
    let calls = Calls::at(place, threads, paths)?;
    (calls.are_told_apart() && calls.have_any_order(allocations)).then_some(place)
}

/// The allocations that show that a thread has called again from a place.
fn find_repetitions(threads: &[ThreadLoops], paths: &CallPaths) -> SeededMap<PathId, Landings> {
    let mut repetitions: Vec<(usize, PathId)> = Vec::new();
    for thread in threads {
        let mut called: SeededSet<PathId> = SeededSet::default();
        let mut before = None;
        for event in &thread.events {
            let running = running_depth(before, event, paths);
            before = Some(event.path);
            let is_new = |place: &PathId| running.is_none_or(|depth| paths.frame(*place).depth >= depth);
            for place in paths.callers(event.path).take_while(is_new) {
                // Inside the call of a model are layers.
                if paths.frame(place).module_call.is_none() && !called.insert(place) {
                    repetitions.push((event.index, place));
                }
            }
        }
    }
    if threads.len() > 1 {
        repetitions.sort_unstable();
    }
    let mut by_place: SeededMap<PathId, Landings> = SeededMap::default();
    for (index, place) in repetitions {
        by_place.entry(place).and_modify(|known| known.add(index)).or_insert(Landings::at(index));
    }
    by_place
}

/// The depth of the outermost place at which the call is not that of the allocation before; `None`
/// if all calls are new.
fn running_depth(before: Option<PathId>, event: &LoopEvent, paths: &CallPaths) -> Option<u32> {
    let before = before?;
    let depth = |place: PathId| paths.frame(place).depth;
    let running = match paths.fork(before, event.path) {
        // The call is that of another function, or the function has gone on to another instruction.
        Some(fork) if paths.order(fork.before, fork.after).is_none() => depth(fork.after).saturating_sub(1),
        Some(fork) => depth(fork.after),
        // The last allocation was made at a place that now calls.
        None => depth(before),
    };
    Some(event.returned_to.map_or(running, |place| running.min(depth(place))))
}

/// The calls at a place, by the path of their first allocation.
struct Calls {
    /// Of each thread in their order, with the index of the allocation.
    by_thread: Vec<Vec<(PathId, usize)>>,
    /// Occurrences of an allocation in calls that begin with another one.
    later: SeededMap<PathId, usize>,
}

impl Calls {
    /// `None` if the function of the place also allocates elsewhere between the calls.
    fn at(place: PathId, threads: &[ThreadLoops], paths: &CallPaths) -> Option<Self> {
        let PathFrame { depth, frame, .. } = paths.frame(place);
        let is_below = mark_callees(paths, |path| path == place);
        let is_in_function = mark_callees(paths, |path| paths.frame(path).frame == frame);
        let (mut by_thread, mut later) = (Vec::new(), SeededMap::default());
        for thread in threads {
            let mut calls: Vec<(PathId, usize)> = Vec::new();
            let mut first = None;
            let mut is_elsewhere = false;
            for event in &thread.events {
                if !is_below[event.path.0 as usize] {
                    first = None;
                    let is_in_loop =
                        is_in_function[event.path.0 as usize] || paths.frame(event.path).frame == frame;
                    is_elsewhere |= is_in_loop && !calls.is_empty();
                    continue;
                }
                if is_elsewhere {
                    return None;
                }
                let has_returned = event.returned_to.is_some_and(|to| paths.frame(to).depth <= depth);
                match first.filter(|_| !has_returned) {
                    Some(first) if first != event.path => *later.entry(event.path).or_default() += 1,
                    Some(_) => {}
                    None => {
                        first = Some(event.path);
                        calls.push((event.path, event.index));
                    }
                }
            }
            if !calls.is_empty() {
                by_thread.push(calls);
            }
        }
        Some(Self { by_thread, later })
    }

    /// True if hardly any call begins with an allocation that others have later.
    fn are_told_apart(&self) -> bool {
        let kinds = self.count_by_kind();
        let calls: usize = kinds.values().sum();
        // The first call of a thread often has no earlier result to free.
        let exceptions = self.by_thread.len();
        let is_doubtful = |(kind, calls): &(&PathId, &usize)| {
            let later = self.later.get(kind).copied().unwrap_or(0);
            later.saturating_sub(exceptions) * EXCEPTION_SHARE > **calls
        };
        let doubtful: usize = kinds.iter().filter(is_doubtful).map(|(_, calls)| calls).sum();
        doubtful * EXCEPTION_SHARE <= calls
    }

    fn count_by_kind(&self) -> SeededMap<PathId, usize> {
        let mut kinds = SeededMap::default();
        for (kind, _) in self.by_thread.iter().flatten() {
            *kinds.entry(*kind).or_insert(0) += 1;
        }
        kinds
    }

    /// True if all kinds occur in the whole run, and follow themselves as often as in a random
    /// order.
    fn have_any_order(&self, allocations: usize) -> bool {
        let counts = self.count_by_kind();
        let calls: usize = counts.values().sum();
        if counts.values().any(|count| *count as f64 > MAX_KIND_SHARE * calls as f64) {
            return false;
        }
        let expected_of = |squares: usize| squares as f64 / calls as f64;
        // Rare kinds are judged together.
        let group_of =
            |kind: PathId| Some(kind).filter(|kind| expected_of(counts[kind].pow(2)) >= MIN_EXPECTED);
        // Of each group: calls, and the sum of the squares of its kinds.
        let mut groups: SeededMap<Option<PathId>, (usize, usize)> = SeededMap::default();
        for (kind, count) in &counts {
            let group = groups.entry(group_of(*kind)).or_default();
            *group = (group.0 + count, group.1 + count.pow(2));
        }
        let rare = groups.remove(&None).unwrap_or_default();
        if expected_of(rare.1) >= MIN_EXPECTED {
            groups.insert(None, rare);
        } else if rare.0 as f64 > MAX_UNKNOWN_SHARE * calls as f64 {
            return false;
        }
        let avoids_itself = |lag: usize| {
            let pairs = self.by_thread.iter().flat_map(|calls| calls.iter().zip(calls.iter().skip(lag)));
            let pairs: Vec<(PathId, bool)> = pairs.map(|(call, later)| (call.0, call.0 == later.0)).collect();
            let mut seen: SeededMap<Option<PathId>, usize> = SeededMap::default();
            for (kind, _) in pairs.iter().filter(|(_, is_equal)| *is_equal) {
                *seen.entry(group_of(*kind)).or_default() += 1;
            }
            groups.iter().any(|(group, (_, squares))| {
                let expected = expected_of(*squares) * pairs.len() as f64 / calls as f64;
                let least = expected - RARE_DEVIATIONS[usize::from(lag > 1)] * expected.sqrt();
                (seen.get(group).copied().unwrap_or(0) as f64) < least
            })
        };
        !(1..=MAX_LAG).any(avoids_itself)
            && groups.keys().flatten().all(|kind| self.cover_run(*kind, allocations))
    }

    fn cover_run(&self, kind: PathId, allocations: usize) -> bool {
        let of_kind = self.by_thread.iter().flatten().filter(|call| call.0 == kind);
        let mut indices: Vec<usize> = of_kind.map(|(_, index)| *index).collect();
        indices.sort_unstable();
        let mut indices = indices.into_iter();
        let Some(mut landings) = indices.next().map(Landings::at) else { return false };
        indices.for_each(|index| landings.add(index));
        landings.cover_run(allocations)
    }
}

/// For each path, whether it is inside of one with this property.
fn mark_callees(paths: &CallPaths, is_caller: impl Fn(PathId) -> bool) -> Vec<bool> {
    let mut is_inside = vec![false; paths.len()];
    // Callers have smaller ids.
    for path in paths.all() {
        let caller = paths.frame(path).parent;
        is_inside[path.0 as usize] =
            caller.is_some_and(|caller| is_caller(caller) || is_inside[caller.0 as usize]);
    }
    is_inside
}
