//! Finds the outermost loop of a Python program in its allocations.
//!
//! If a thread's next allocation is at an earlier instruction of the same function, below the same
//! callers, a loop has gone round: it *lands* at the earlier place. The function is the innermost
//! one that both stacks share. So a loop over layers lands in the model's code, and the loop over
//! batches around it in its caller's. Sizes do not matter, and neither does timing.
//!
//! The outermost function with enough landings has the loop. It may have an inner loop too, which
//! lands at a later place. Its landings divide the run into iterations, and an allocation that
//! occurs exactly once in each of them begins the steps. If there is none, the signs disagree and
//! no steps are better than a wrong number.
//!
//! These are no loops: repetition of one allocation without a free (`[f() for _ in range(100)]`),
//! and what covers only a part of the run or a few moments of it.

use std::cmp::Ordering;

use gpumemtrace_format::ThreadId;

use crate::callsite::call_paths::{CallPaths, FrameId, PathId};
use crate::util::seeded_map::SeededMap;

/// A loop must have at least this many iterations.
pub(super) const MIN_ITERATIONS: usize = 8;
/// A thread must make at least one in so many allocations to have the loop.
const MAX_THREADS: usize = 4;
/// One in so many iterations may lack the allocation that begins steps, or have it twice.
const EXCEPTION_SHARE: usize = 100;

/// An allocation of a thread.
#[derive(Clone, Copy, Debug)]
struct LoopEvent {
    /// Index among all allocations of the run.
    index: usize,
    path: PathId,
    /// Where a loop landed with it.
    landing: Option<PathId>,
    /// The thread freed something since its last allocation.
    follows_free: bool,
}

/// The allocations of one thread.
#[derive(Debug, Default)]
struct ThreadLoops {
    events: Vec<LoopEvent>,
    follows_free: bool,
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

    /// Counts repetitions of one allocation as landings if frees come between most of them.
    fn mark_repetitions(&mut self) {
        let mut from = 0;
        while from < self.events.len() {
            let path = self.events[from].path;
            let len = self.events[from..].iter().take_while(|event| event.path == path).count();
            let repeated = &mut self.events[from + 1..from + len];
            let frees = repeated.iter().filter(|event| event.follows_free).count();
            if frees * 2 >= repeated.len() {
                repeated.iter_mut().for_each(|event| event.landing = Some(path));
            }
            from += len;
        }
    }
}

/// Records the allocations of each thread.
#[derive(Debug, Default)]
pub(super) struct LoopDetector {
    /// By first allocation.
    threads: Vec<ThreadLoops>,
    by_id: SeededMap<ThreadId, usize>,
    /// The thread of the last event.
    last: Option<(ThreadId, usize)>,
}

impl LoopDetector {
    /// Observes an allocation. `index` is its number among all allocations of the run.
    pub(super) fn on_allocation(&mut self, thread: ThreadId, index: usize, path: PathId, paths: &CallPaths) {
        let number = match self.last {
            Some((last, number)) if last == thread => number,
            _ => {
                let next = self.threads.len();
                *self.by_id.entry(thread).or_insert(next)
            }
        };
        if number == self.threads.len() {
            self.threads.push(ThreadLoops::default());
        }
        self.last = Some((thread, number));
        let state = &mut self.threads[number];
        let landing = state.find_landing(path, paths);
        let follows_free = std::mem::take(&mut state.follows_free);
        state.events.push(LoopEvent { index, path, landing, follows_free });
    }

    /// Observes a free.
    #[inline]
    pub(super) fn on_free(&mut self, thread: ThreadId) {
        let number = match self.last {
            Some((last, number)) if last == thread => Some(number),
            _ => self.by_id.get(&thread).copied(),
        };
        if let Some(number) = number {
            self.threads[number].follows_free = true;
        }
    }

    /// Number of observed allocations.
    pub(super) fn allocations(&self) -> usize {
        self.threads.iter().map(|thread| thread.events.len()).sum()
    }

    /// The allocation that begins the iterations of the outermost loop. `allocations` is the number
    /// of all allocations of the run.
    pub(super) fn find_loop(&mut self, allocations: usize, paths: &CallPaths) -> Option<PathId> {
        let mut busiest: Vec<&mut ThreadLoops> = self.threads.iter_mut().collect();
        busiest.sort_by_key(|thread| std::cmp::Reverse(thread.events.len()));
        busiest.retain(|thread| thread.events.len() * MAX_THREADS >= allocations);
        busiest.into_iter().find_map(|thread| {
            thread.mark_repetitions();
            find_loop_of_thread(&thread.events, allocations, paths)
        })
    }
}

/// Landings at one place or in one function.
#[derive(Clone, Copy, Debug)]
struct Landings {
    count: usize,
    first: usize,
    last: usize,
    widest_gap: usize,
}

impl Landings {
    fn at(index: usize) -> Self {
        Self { count: 1, first: index, last: index, widest_gap: 0 }
    }

    fn add(&mut self, index: usize) {
        self.count += 1;
        self.widest_gap = self.widest_gap.max(index - self.last);
        self.last = index;
    }

    /// True for a loop over the run: enough iterations that cover at least half of all allocations,
    /// reach its last quarter, and are not concentrated in a few moments.
    fn cover_run(&self, allocations: usize) -> bool {
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

fn find_loop_of_thread(events: &[LoopEvent], allocations: usize, paths: &CallPaths) -> Option<PathId> {
    let mut places: SeededMap<PathId, Landings> = SeededMap::default();
    let mut functions: SeededMap<FrameId, Landings> = SeededMap::default();
    let landings = || events.iter().filter_map(|event| event.landing.map(|place| (event.index, place)));
    for (index, place) in landings() {
        let function = paths.frame(place).frame;
        places.entry(place).and_modify(|known| known.add(index)).or_insert(Landings::at(index));
        functions.entry(function).and_modify(|known| known.add(index)).or_insert(Landings::at(index));
    }
    let covering = places
        .iter()
        .filter(|(place, _)| functions[&paths.frame(**place).frame].cover_run(allocations))
        .map(|(place, landings)| (*place, paths.frame(*place), *landings));
    let covering: Vec<_> = covering.collect();
    let (_, outermost, _) =
        covering.iter().min_by_key(|(_, frame, of_place)| (frame.depth, of_place.first))?;
    let in_function = covering.iter().filter(|(_, frame, _)| frame.frame == outermost.frame);
    // The loop begins at the first place in the code at which it often lands.
    let often = in_function.filter(|(_, _, of_place)| of_place.cover_run(allocations));
    let begin = often.map(|(_, frame, _)| frame.offset_bytes).min().unwrap_or(i32::MAX);
    let is_inner = |place: PathId| paths.frame(place).offset_bytes > begin;
    let in_loop =
        |event: &LoopEvent| event.landing.filter(|place| paths.frame(*place).frame == outermost.frame);
    let (mut begins, mut with_inner, mut inner) = (Vec::new(), 0, 0);
    let mut has_inner = false;
    for (number, event) in events.iter().enumerate() {
        match in_loop(event) {
            Some(place) if is_inner(place) => {
                inner += 1;
                with_inner += usize::from(!std::mem::replace(&mut has_inner, true));
            }
            Some(_) => {
                begins.push(number);
                has_inner = false;
            }
            None => {}
        }
    }
    // Later places are those of an inner loop only if it goes round in nearly each iteration. Else
    // they may be landings of the same loop, with code at its beginning that does not always run.
    let is_one_loop = inner * EXCEPTION_SHARE <= begins.len();
    let has_inner_loop = with_inner * 20 >= begins.len() * 19;
    (is_one_loop || has_inner_loop).then(|| find_begin(events, &begins)).flatten()
}

/// How often an allocation occurs in the iterations of a loop.
#[derive(Clone, Copy, Debug)]
struct Occurrences {
    first: usize,
    count: usize,
    /// Iterations in which it occurs once.
    once: usize,
    last_iteration: usize,
    in_last_iteration: usize,
}

/// The first allocation that occurs exactly once in each iteration. `begins` are the numbers of the
/// events that begin iterations, without the first one.
fn find_begin(events: &[LoopEvent], begins: &[usize]) -> Option<PathId> {
    let mut all: SeededMap<PathId, Occurrences> = SeededMap::default();
    let mut iteration = 0;
    for (number, event) in events.iter().enumerate() {
        while begins.get(iteration).is_some_and(|begin| *begin <= number) {
            iteration += 1;
        }
        let new = Occurrences {
            first: number,
            count: 0,
            once: 0,
            last_iteration: usize::MAX,
            in_last_iteration: 0,
        };
        let one = all.entry(event.path).or_insert(new);
        one.count += 1;
        if one.last_iteration != iteration {
            one.last_iteration = iteration;
            one.in_last_iteration = 0;
            one.once += 1;
        }
        one.in_last_iteration += 1;
        if one.in_last_iteration == 2 {
            one.once -= 1;
        }
    }
    let iterations = begins.len() + 1;
    let exceptions = iterations / EXCEPTION_SHARE;
    let regular = all.iter().filter(|(_, one)| {
        // The last iteration may be incomplete.
        let unfinished = usize::from(one.last_iteration + 1 < iterations);
        one.once + exceptions + unfinished >= iterations && one.count <= iterations + exceptions
    });
    regular.min_by_key(|(_, one)| one.first).map(|(path, _)| *path)
}
