//! Finds the outermost loop among those that a program's allocations show.
//!
//! The outermost function with enough landings ([`super::loop_detector`]) has the loop. It may have
//! an inner loop too, which lands at a later place. The landings divide the run into iterations,
//! and an allocation that occurs exactly once in each of them begins the steps. If there is none,
//! the signs disagree, and no steps are better than a wrong number.
//!
//! These are no loops: repetition of one allocation without a free (`[f() for _ in range(100)]`),
//! what covers only a part of the run, a few moments of it or a small share of its allocations, and
//! the layers of one model call ([`crate::callsite::module_calls`]).
//!
//! An inner loop that always goes round equally often looks like a branch in every n-th iteration.
//! The order in the code decides: what comes first there, begins the steps. So if a loop calls one
//! function each time, and another one later in the code every n-th time, the first one counts.
//! These calls land in the function itself, at its first place ([`Reentries`]).
//!
//! `handlers[kind](request)` calls several functions in any order. None of them has the loop, and
//! [`super::repeated_call`] may count their calls.
//!
//! Threads that run the same code are counted together, so it does not matter which of them gets a
//! piece of work.

use crate::callsite::call_paths::{CallPaths, FrameId, PathFrame, PathId};
use crate::callsite::module_calls::ModuleCalls;
use crate::timeline::step_detector::loop_detector::{LoopEvent, ThreadLoops};
use crate::util::seeded_map::SeededMap;

/// A loop must have at least this many iterations.
const MIN_ITERATIONS: usize = 8;
/// The loop's function makes at least one of this number of allocations.
pub(super) const MIN_SHARE: usize = 4;
/// One of this number of iterations may lack the allocation that begins steps, or have it twice.
const EXCEPTION_SHARE: usize = 100;

/// Landings at one place or in one function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landings {
    count: usize,
    pub(super) first: usize,
    last: usize,
    widest_gap: usize,
}

impl Landings {
    pub(super) fn at(index: usize) -> Self {
        Self { count: 1, first: index, last: index, widest_gap: 0 }
    }

    /// Adds a landing. Indices must ascend.
    pub(super) fn add(&mut self, index: usize) {
        self.count += 1;
        self.widest_gap = self.widest_gap.max(index - self.last);
        self.last = index;
    }

    /// True for a loop over the run: enough iterations that cover at least half of all allocations,
    /// reach its last quarter, and are not concentrated in a few moments.
    pub(super) fn cover_run(&self, allocations: usize) -> bool {
        if self.count + 1 < MIN_ITERATIONS {
            return false;
        }
        let span = self.last - self.first;
        // The first iteration comes before the first landing, and the last one after the last.
        let covered = span + 2 * span / (self.count - 1);
        covered * 2 >= allocations
            && (allocations - self.last) * 4 <= allocations
            && self.widest_gap * 3 <= span
    }
}

/// The allocation that begins the iterations of the outermost loop, and the number of frames
/// outside of the loop's function. `allocations` is the number of all allocations of the run.
pub(super) fn find_outermost_loop(
    threads: &[ThreadLoops],
    allocations: usize,
    paths: &CallPaths,
    module_calls: &ModuleCalls,
) -> Option<(PathId, u32)> {
    let places = landings_by_place(threads);
    let mut functions: SeededMap<FrameId, Landings> = SeededMap::default();
    for (index, place) in sorted_landings(threads) {
        let landings = functions.entry(paths.frame(place).frame);
        landings.and_modify(|known| known.add(index)).or_insert(Landings::at(index));
    }
    let counts = allocations_below(threads, paths);
    let mut shares: SeededMap<FrameId, usize> = SeededMap::default();
    for path in paths.all() {
        *shares.entry(paths.frame(path).frame).or_default() += counts[path.0 as usize];
    }
    let all: usize = threads.iter().map(|thread| thread.events.len()).sum();
    let covering = places.keys().map(|place| (*place, paths.frame(*place))).filter(|(path, place)| {
        let landings = functions[&place.frame];
        landings.cover_run(allocations)
            && shares[&place.frame] * MIN_SHARE >= all
            && !module_calls.may_be_fewer_than(landings.count as u64 / 2, *path, paths)
    });
    let covering = covering.map(|(_, place)| place);
    let outermost = covering.min_by_key(|place| (place.depth, functions[&place.frame].first))?;
    let function = outermost.frame;
    if outermost.parent.is_some_and(|caller| calls_in_any_order(caller, function, threads, paths)) {
        return None;
    }
    // The loop begins at the first place in the code at which it often lands.
    let begin = places
        .iter()
        .filter(|(place, landings)| paths.frame(**place).frame == function && landings.cover_run(allocations))
        .map(|(place, _)| paths.frame(*place).offset_bytes)
        .min()
        .unwrap_or(i32::MAX);
    let mut code = LoopCode { function, begin, reentries: Reentries::default(), paths };
    let reentries = Reentries::find(&places, function, &counts, paths);
    if reentries.are_regular(threads, &code) {
        code.reentries = reentries;
    }
    let begin = LoopIterations::divide(threads, &code).find_begin()?;
    Some((begin, outermost.depth))
}

/// Where the loop is.
struct LoopCode<'a> {
    function: FrameId,
    /// The first instruction at which it lands.
    begin: i32,
    reentries: Reentries,
    paths: &'a CallPaths,
}

impl LoopCode<'_> {
    /// The place in the loop's function at which it lands with an event.
    fn landing(&self, event: &LoopEvent) -> Option<PathId> {
        let place = event.landing?;
        if self.paths.frame(place).frame == self.function {
            return Some(place);
        }
        self.reentries.by_place.get(&place).copied()
    }

    fn is_inner(&self, place: PathId) -> bool {
        self.paths.frame(place).offset_bytes > self.begin
    }
}

/// Landings at the first place of functions that the loop's function calls. They mean that the call
/// repeats: the loop has gone round without an allocation elsewhere.
#[derive(Debug, Default)]
struct Reentries {
    /// The place of the call, by the first place in the called function.
    by_place: SeededMap<PathId, PathId>,
}

impl Reentries {
    fn find(
        places: &SeededMap<PathId, Landings>,
        function: FrameId,
        counts: &[usize],
        paths: &CallPaths,
    ) -> Self {
        let mut first: SeededMap<FrameId, PathId> = SeededMap::default();
        for path in paths.all().filter(|path| counts[path.0 as usize] > 0) {
            let known = first.entry(paths.frame(path).frame).or_insert(path);
            if paths.frame(path).offset_bytes < paths.frame(*known).offset_bytes {
                *known = path;
            }
        }
        let call_of = |place: PathId| {
            let mut caller = paths.frame(place).parent?;
            while paths.frame(caller).is_wrapper {
                caller = paths.frame(caller).parent?;
            }
            (paths.frame(caller).frame == function).then_some((place, caller))
        };
        let landed = places.keys().filter(|place| first.get(&paths.frame(**place).frame) == Some(place));
        Self { by_place: landed.filter_map(|place| call_of(*place)).collect() }
    }

    /// True if they are equally many in 95% of the iterations by other landings, as with a branch
    /// in every n-th iteration. An inner loop may go round more or less often.
    fn are_regular(&self, threads: &[ThreadLoops], code: &LoopCode<'_>) -> bool {
        let mut by_iteration: Vec<usize> = Vec::new();
        for thread in threads {
            let mut reentries = None;
            for event in &thread.events {
                if code.landing(event).is_some_and(|place| !code.is_inner(place)) {
                    by_iteration.extend(reentries.replace(0));
                } else if event.landing.is_some_and(|place| self.by_place.contains_key(&place)) {
                    reentries = reentries.map(|count| count + 1);
                }
            }
        }
        let mut sorted = by_iteration.clone();
        sorted.sort_unstable();
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0);
        let equal = by_iteration.iter().filter(|count| **count == median).count();
        equal * 20 >= by_iteration.len() * 19
    }
}

/// True if a caller calls other functions at the instruction that calls this one, like the handlers
/// of requests: between two calls of this one, often none, and often one of them repeatedly. Stages
/// of an iteration come at most once, or equally often.
fn calls_in_any_order(caller: PathId, function: FrameId, threads: &[ThreadLoops], paths: &CallPaths) -> bool {
    let mut callees: Vec<Option<FrameId>> = vec![None; paths.len()];
    for path in paths.all() {
        let PathFrame { parent, frame, .. } = paths.frame(path);
        let of_parent = parent.and_then(|parent| callees[parent.0 as usize]);
        callees[path.0 as usize] = if parent == Some(caller) { Some(frame) } else { of_parent };
    }
    let depth = paths.frame(caller).depth;
    let (mut turns, mut empty, mut repeated) = (0, 0, 0);
    for thread in threads {
        let mut inside = None;
        let mut others: Option<SeededMap<FrameId, usize>> = None;
        for event in &thread.events {
            let callee = callees[event.path.0 as usize];
            let has_returned = event.returned_to.is_some_and(|to| paths.frame(to).depth <= depth);
            let is_new = std::mem::replace(&mut inside, callee) != callee || has_returned;
            let Some(callee) = callee.filter(|_| is_new) else { continue };
            if callee != function {
                if let Some(others) = &mut others {
                    *others.entry(callee).or_default() += 1;
                }
            } else if let Some(others) = others.replace(SeededMap::default()) {
                turns += 1;
                empty += usize::from(others.is_empty());
                repeated += usize::from(others.values().any(|calls| *calls > 1));
            }
        }
    }
    empty * 20 > turns && repeated * 20 > turns
}

/// All landings by ascending index.
fn sorted_landings(threads: &[ThreadLoops]) -> Vec<(usize, PathId)> {
    let events = threads.iter().flat_map(|thread| &thread.events);
    let mut landings: Vec<(usize, PathId)> =
        events.filter_map(|event| event.landing.map(|place| (event.index, place))).collect();
    if threads.len() > 1 {
        landings.sort_unstable();
    }
    landings
}

fn landings_by_place(threads: &[ThreadLoops]) -> SeededMap<PathId, Landings> {
    let mut places: SeededMap<PathId, Landings> = SeededMap::default();
    for (index, place) in sorted_landings(threads) {
        let landings = places.entry(place);
        landings.and_modify(|known| known.add(index)).or_insert(Landings::at(index));
    }
    places
}

/// Number of allocations at each path and in its callees.
pub(super) fn allocations_below(threads: &[ThreadLoops], paths: &CallPaths) -> Vec<usize> {
    let mut counts = vec![0; paths.len()];
    for event in threads.iter().flat_map(|thread| &thread.events) {
        counts[event.path.0 as usize] += 1;
    }
    // Callers have smaller ids.
    for path in paths.all().rev() {
        if let Some(parent) = paths.frame(path).parent {
            counts[parent.0 as usize] += counts[path.0 as usize];
        }
    }
    counts
}

/// How often something occurs in the iterations of a loop.
#[derive(Clone, Copy, Debug, Default)]
struct Occurrences {
    /// Index of the first occurrence.
    first: usize,
    count: usize,
    /// Iterations in which it occurs.
    iterations: usize,
    /// Iterations in which it occurs once.
    once: usize,
    /// The number of the iteration of the last occurrence, from 1.
    last_iteration: usize,
    in_last_iteration: usize,
    /// Threads in whose last iteration it does not occur.
    unfinished: usize,
}

impl Occurrences {
    fn add(&mut self, iteration: usize) {
        self.count += 1;
        if self.last_iteration != iteration {
            self.last_iteration = iteration;
            self.in_last_iteration = 0;
            self.iterations += 1;
            self.once += 1;
        }
        self.in_last_iteration += 1;
        if self.in_last_iteration == 2 {
            self.once -= 1;
        }
    }
}

/// The allocations of a function, by iterations of the loop in it.
#[derive(Debug, Default)]
struct LoopIterations {
    iterations: usize,
    by_path: SeededMap<PathId, Occurrences>,
    /// Iterations with an allocation at a place of an inner loop, and iterations in which the inner
    /// loop went round.
    inner: SeededMap<PathId, (Occurrences, Occurrences)>,
}

impl LoopIterations {
    fn divide(threads: &[ThreadLoops], code: &LoopCode<'_>) -> Self {
        let paths = code.paths;
        // The place in the function below which each path is.
        let mut places: Vec<Option<PathId>> = vec![None; paths.len()];
        for path in paths.all() {
            let frame = paths.frame(path);
            let of_parent = frame.parent.and_then(|parent| places[parent.0 as usize]);
            places[path.0 as usize] = if frame.frame == code.function { Some(path) } else { of_parent };
        }
        let place_of = |path: PathId| places[path.0 as usize];
        let mut all = Self::default();
        for thread in threads {
            if !thread.events.iter().any(|event| place_of(event.path).is_some()) {
                continue;
            }
            all.iterations += 1;
            for event in &thread.events {
                let landing = code.landing(event);
                let inner = landing.filter(|place| code.is_inner(*place));
                if landing.is_some() && inner.is_none() {
                    all.iterations += 1;
                }
                let new = Occurrences { first: event.index, ..Occurrences::default() };
                all.by_path.entry(event.path).or_insert(new).add(all.iterations);
                if let Some(place) = place_of(event.path) {
                    let inner_loop = all.inner.entry(place).or_default();
                    inner_loop.0.add(all.iterations);
                    if inner.is_some() {
                        inner_loop.1.add(all.iterations);
                    }
                }
            }
            for path in all.by_path.values_mut().filter(|path| path.last_iteration < all.iterations) {
                path.unfinished += 1;
            }
        }
        all
    }

    /// The first allocation that occurs exactly once in each iteration.
    fn find_begin(&self) -> Option<PathId> {
        let exceptions = self.iterations / EXCEPTION_SHARE;
        // A later place is that of an inner loop if it goes round whenever it is reached. Else the
        // landing may be one of the same loop, with code at its begin that does not always run.
        let doubtful = self.inner.values().filter(|(reached, round)| {
            round.iterations > exceptions && round.iterations * 20 < reached.iterations * 19
        });
        if doubtful.count() > 0 {
            return None;
        }
        let regular = self.by_path.iter().filter(|(_, path)| {
            // The last iteration of a thread may be incomplete.
            path.once + exceptions + path.unfinished >= self.iterations
                && path.count <= self.iterations + exceptions
        });
        regular.min_by_key(|(_, path)| path.first).map(|(path, _)| *path)
    }
}
