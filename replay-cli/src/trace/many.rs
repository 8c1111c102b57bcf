//! Reads many traces on all cores. A trace in memory is that of a thread: memory grows with the
//! threads, and with what the caller keeps of each trace.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use crate::exit::UnreadableInput;
use crate::terminal::format::{format_count, format_number};
use crate::terminal::status_line;
use crate::terminal::stderr::print_message;

/// Most traces whose analyses are in memory together, for what compares them in detail. Of more,
/// only summaries are kept.
pub(crate) const MAX_TOGETHER: usize = 16;
const FIRST_LINE_AFTER: Duration = Duration::from_secs(1);
/// Most unreadable traces that stderr names.
const MAX_NAMED: usize = 10;

/// How many traces are read at once, and whether a line on stderr counts them.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// `None`: one for each core.
    pub(crate) jobs: Option<u16>,
    pub(crate) shows_progress: bool,
    /// What the line counts: `traces`.
    pub(crate) noun: &'static str,
}

/// Calls `read` for each item, in several threads. Each has a worker of its own, such as a cache.
///
/// `collect` gets the results with the index of their item as they are made, in any order. If it is
/// slow, the threads wait for it.
pub(crate) fn read_many<I: Sync, W, T: Send, R>(
    items: &[I],
    pace: Pace,
    start_worker: impl Fn() -> W + Sync,
    read: impl Fn(&mut W, &I) -> T + Sync,
    collect: impl FnOnce(&mut dyn Iterator<Item = (usize, T)>) -> R,
) -> R {
    let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let jobs = pace.jobs.map_or_else(cores, usize::from).min(items.len());
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    let (sender, results) = sync_channel(jobs);
    thread::scope(|scope| {
        for _ in 0..jobs {
            let (sender, next, start_worker, read) = (sender.clone(), &next, &start_worker, &read);
            scope.spawn(move || {
                let mut worker = start_worker();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    if sender.send((index, read(&mut worker, item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut done = 0;
        // Owned here: a `collect` that stops early ends the threads, since nothing receives.
        let mut counted = results.into_iter().inspect(|_| {
            done += 1;
            if pace.shows_progress && began.elapsed() > FIRST_LINE_AFTER {
                status_line::draw(&describe_progress(done, items.len(), pace.noun, began.elapsed()));
            }
        });
        let collected = collect(&mut counted);
        drop(counted);
        status_line::erase();
        collected
    })
}

/// Reads traces one after the other. Returns what was read, and the number of traces that cannot be
/// read; these are named on stderr.
///
/// # Errors
///
/// With `are_all`, these are all traces of the command: it is an error if none can be read.
pub(crate) fn read_each<I, T>(
    items: &[I],
    are_all: bool,
    mut read: impl FnMut(&I) -> Result<T, UnreadableInput>,
) -> Result<(Vec<T>, usize), UnreadableInput> {
    let (mut taken, mut unreadable) = (Vec::new(), Vec::new());
    for item in items {
        match read(item) {
            Ok(one) => taken.push(one),
            Err(error) if are_all && items.len() == 1 => return Err(error),
            Err(UnreadableInput(why)) => unreadable.push(why),
        }
    }
    name_left_out(unreadable.iter().map(String::as_str));
    if are_all && taken.is_empty() { Err(UnreadableInput::of_all()) } else { Ok((taken, unreadable.len())) }
}

/// Names traces on stderr that are passed over, given why each cannot be read.
pub(crate) fn name_left_out<'a>(reasons: impl ExactSizeIterator<Item = &'a str>) {
    let more = reasons.len().saturating_sub(MAX_NAMED) as u64;
    for why in reasons.take(MAX_NAMED) {
        print_message(format_args!("gpumemtrace: {why}; it is left out"));
    }
    if more > 0 {
        let more = format_count(more, "more trace");
        print_message(format_args!("gpumemtrace: {more} cannot be read; they are left out"));
    }
}

fn describe_progress(done: usize, all: usize, noun: &str, took: Duration) -> String {
    let left = took.as_secs_f64() / done.max(1) as f64 * (all - done) as f64;
    format!("{} of {} {noun}, {left:.0} s left", format_number(done as u64), format_number(all as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_read_once_and_a_collector_may_stop() {
        let items: Vec<usize> = (0..100).collect();
        for jobs in [1, 2, 7] {
            let pace = Pace { jobs: Some(jobs), shows_progress: false, noun: "traces" };
            let read = |calls: &mut usize, item: &usize| {
                *calls += 1;
                item * 2
            };
            let mut all = read_many(&items, pace, || 0, read, |results| results.collect::<Vec<_>>());
            all.sort_unstable();
            assert_eq!(all, items.iter().map(|item| (*item, item * 2)).collect::<Vec<_>>());
            let first = read_many(&items, pace, || 0, read, |results| results.take(3).count());
            assert_eq!(first, 3);
        }
    }

    #[test]
    fn as_many_items_are_read_at_once_as_there_are_jobs() {
        let pace = Pace { jobs: Some(3), shows_progress: false, noun: "traces" };
        let all_began = std::sync::Barrier::new(3);
        // With fewer threads, the first item would wait forever.
        let read = |(): &mut (), _: &u8| all_began.wait().is_leader();
        let leaders = read_many(&[0; 3], pace, || (), read, |results| results.filter(|(_, is)| *is).count());
        assert_eq!(leaders, 1);
    }

    #[test]
    fn progress_line_has_count_and_time_left() {
        let line = describe_progress(250, 1000, "traces", Duration::from_secs(10));
        assert_eq!(line, "250 of 1,000 traces, 30 s left");
    }
}
