//! Events in the order of the process, whatever order the file holds them in.
//!
//! Constraint: blocks are grouped by thread, consecutive batches overlap, a killed process's last records may be both in a
//! block and in the ring, and a damaged block leaves a hole. The file may be far larger than memory. Consequence: ascending
//! runs are merged through a heap with one entry per run (not per event), strictly by `seq`; a number seen before is dropped;
//! a number that has not come when [`MAX_WAITING`] later events wait for it is given up and counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::ControlFlow;

use gpumemtrace_format::{Event, NO_SEQ};

/// How many events may wait for a missing one.
pub(crate) const MAX_WAITING: usize = 1 << 20;
/// Most events that are handed on together: so many are in the nearest cache when they are looked at again.
const MOST_TOGETHER: usize = 64;
/// How many events without a place in the order are kept: one per thread in flight is what is expected.
const MAX_UNPLACED: usize = 1 << 16;

#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct ThreadRun {
    seq: u64,
    batch: usize,
    at: usize,
    end: usize,
}

/// Events of one block, and where their numbers stop ascending.
#[derive(Debug)]
pub(crate) struct EventBatch {
    events: Vec<Event>,
    /// First number and end of each run.
    runs: Vec<(u64, usize)>,
    /// Runs of which something is left.
    left: usize,
}

impl EventBatch {
    /// To be made where the events were: who reads them first waits for them.
    pub(crate) fn of(events: Vec<Event>) -> Self {
        let mut end = 0;
        let runs: Vec<(u64, usize)> = events
            .chunk_by(|a, b| a.seq < b.seq)
            .map(|run| {
                end += run.len();
                (run[0].seq, end)
            })
            .collect();
        Self { left: runs.len(), events, runs }
    }
}

/// Merges batches of events into one ordered stream.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    batches: Vec<Option<EventBatch>>,
    free: Vec<usize>,
    /// What was handed on completely since it was asked for last.
    spent: Vec<Vec<Event>>,
    heap: BinaryHeap<Reverse<ThreadRun>>,
    next_seq: u64,
    waiting: usize,
    resident: usize,
    missing: u64,
    repeated: u64,
    unplaced: Vec<Event>,
    unplaced_not_kept: u64,
    max_waiting: usize,
}

/// What the order showed once everything was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderSummary {
    /// One past the highest number seen.
    pub next_seq: u64,
    /// Numbers below `next_seq` that never came.
    pub missing: u64,
    /// Events that were there twice.
    pub repeated: u64,
    /// Calls that had not returned and have no place in the order.
    pub unplaced: Vec<Event>,
}

impl Merger {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self { max_waiting: MAX_WAITING, ..Self::default() }
    }

    /// The number that is handed on next.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Batches that were handed on completely, for whoever fills them anew. Those that nobody asked for are let go.
    pub(crate) fn spent(&mut self) -> impl Iterator<Item = Vec<Event>> {
        self.spent.drain(..)
    }

    /// Takes events and hands on all whose turn has come, in order, a few at a time. Stops when `sink` breaks.
    pub(crate) fn push(
        &mut self,
        events: Vec<Event>,
        sink: &mut impl FnMut(&[Event]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.push_batch(EventBatch::of(events), sink)
    }

    /// As [`Self::push`].
    pub(crate) fn push_batch(
        &mut self,
        batch: EventBatch,
        sink: &mut impl FnMut(&[Event]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if batch.events.is_empty() {
            return ControlFlow::Continue(());
        }
        self.spent.clear();
        if self.resident > 4 * self.max_waiting {
            self.compact();
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.batches.push(None);
            self.batches.len() - 1
        });
        self.waiting += batch.events.len();
        self.add(slot, batch);
        self.drain(self.max_waiting, sink)
    }

    fn add(&mut self, slot: usize, batch: EventBatch) {
        let mut at = 0;
        for (seq, end) in &batch.runs {
            self.heap.push(Reverse(ThreadRun { seq: *seq, batch: slot, at, end: *end }));
            at = *end;
        }
        self.resident += batch.events.len();
        self.batches[slot] = Some(batch);
    }

    /// Hands on everything that still waits.
    pub(crate) fn give_up_missing(&mut self, sink: &mut impl FnMut(&[Event]) -> ControlFlow<()>) {
        let _ = self.drain(0, sink);
    }

    /// The same, and tells what never came.
    pub(crate) fn finish(mut self, sink: &mut impl FnMut(&[Event]) -> ControlFlow<()>) -> OrderSummary {
        self.give_up_missing(sink);
        OrderSummary {
            next_seq: self.next_seq,
            missing: self.missing,
            repeated: self.repeated,
            unplaced: self.unplaced,
        }
    }

    fn drain(
        &mut self,
        may_wait: usize,
        sink: &mut impl FnMut(&[Event]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        while let Some(Reverse(top)) = self.heap.peek() {
            if top.seq > self.next_seq && top.seq != NO_SEQ {
                if self.waiting <= may_wait {
                    break;
                }
                self.missing = self.missing.saturating_add(top.seq - self.next_seq);
                self.next_seq = top.seq;
            }
            // Put right in its place: most runs stay, a few numbers further on.
            let Some(mut top) = self.heap.peek_mut() else { break };
            let run = &mut top.0;
            let Some(batch) = self.batches[run.batch].as_mut() else {
                PeekMut::pop(top);
                continue;
            };
            let begin = run.at;
            let mut flow = ControlFlow::Continue(());
            // A copy, so that it stays in a register.
            let mut next_seq = self.next_seq;
            while let [event, ..] = &batch.events[run.at..run.end] {
                if event.seq == NO_SEQ {
                    if self.unplaced.len() < MAX_UNPLACED {
                        self.unplaced.push(*event);
                    } else {
                        self.unplaced_not_kept += 1;
                    }
                    run.at += 1;
                } else if event.seq < next_seq {
                    self.repeated += 1;
                    run.at += 1;
                } else if event.seq == next_seq {
                    let most = run.end.min(run.at + MOST_TOGETHER);
                    let rest = &batch.events[run.at..most];
                    let gap = rest.iter().position(|event| {
                        let follows = event.seq == next_seq && event.seq != NO_SEQ;
                        next_seq += u64::from(follows);
                        !follows
                    });
                    let len = gap.unwrap_or(rest.len());
                    run.at += len;
                    flow = sink(&rest[..len]);
                    if flow.is_break() {
                        break;
                    }
                } else {
                    break;
                }
            }
            self.next_seq = next_seq;
            self.waiting -= run.at - begin;
            if run.at < run.end {
                run.seq = batch.events[run.at].seq;
            } else {
                let Reverse(run) = PeekMut::pop(top);
                batch.left -= 1;
                if batch.left == 0 {
                    self.resident -= batch.events.len();
                    self.spent.extend(self.batches[run.batch].take().map(|batch| batch.events));
                    self.free.push(run.batch);
                }
            }
            flow?;
        }
        ControlFlow::Continue(())
    }

    /// Lets go of batches that are kept for a few of their events only.
    fn compact(&mut self) {
        let mut rest = Vec::with_capacity(self.waiting);
        for Reverse(run) in self.heap.drain() {
            if let Some(batch) = &self.batches[run.batch] {
                rest.extend_from_slice(&batch.events[run.at..run.end]);
            }
        }
        rest.sort_unstable_by_key(|event| event.seq);
        self.batches.clear();
        self.free.clear();
        self.waiting = rest.len();
        self.resident = 0;
        self.batches.push(None);
        self.add(0, EventBatch::of(rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::{ApiId, EventKind, NodeId, ThreadId};
    use proptest::prelude::*;

    fn event(seq: u64, thread: u32) -> Event {
        Event {
            seq,
            time_ns: seq,
            thread: ThreadId(thread),
            kind: EventKind::BLOCK_ALLOC,
            device: 0,
            api: ApiId(0),
            flags: 0,
            result: 0,
            in_flight: seq == NO_SEQ,
            addr: 0,
            size: 0,
            aux: [0; 2],
            python_stack: NodeId::NONE,
            native_stack: NodeId::NONE,
            detail: None,
        }
    }

    fn merge(batches: Vec<Vec<Event>>, max_waiting: usize) -> (Vec<u64>, OrderSummary) {
        let mut merger = Merger::new();
        merger.max_waiting = max_waiting;
        let mut seen = Vec::new();
        let mut sink = |events: &[Event]| {
            seen.extend(events.iter().map(|event| event.seq));
            ControlFlow::Continue(())
        };
        for batch in batches {
            let _ = merger.push(batch, &mut sink);
        }
        let summary = merger.finish(&mut sink);
        (seen, summary)
    }

    #[test]
    fn behind_the_last_place_there_is_comes_a_call_without_one() {
        let (seen, summary) = merge(vec![vec![event(NO_SEQ - 1, 1), event(NO_SEQ, 1)]], 0);
        assert_eq!((seen, summary.unplaced.len()), (vec![NO_SEQ - 1], 1));
    }

    proptest! {
        #[test]
        fn whatever_the_batches_the_order_is_that_of_the_process(
            threads in proptest::collection::vec(0u32..4, 0..200),
            cuts in proptest::collection::vec(1usize..20, 1..30),
            repeat in any::<prop::sample::Index>(),
        ) {
            let all: Vec<Event> = threads.iter().zip(0..).map(|(thread, seq)| event(seq, *thread)).collect();
            let mut batches = Vec::new();
            let mut rest = &all[..];
            let mut cut = cuts.iter().cycle();
            while !rest.is_empty() {
                let (batch, tail) = rest.split_at((*cut.next().unwrap()).min(rest.len()));
                let mut batch = batch.to_vec();
                batch.sort_by_key(|event| (event.thread, event.seq));
                batches.push(batch);
                rest = tail;
            }
            if !batches.is_empty() {
                let again = batches[repeat.index(batches.len())].clone();
                batches.push(again);
            }
            // Neighbouring batches change places, as when threads are drained one by one.
            for pair in batches.chunks_exact_mut(2) {
                pair.swap(0, 1);
            }
            let (seen, summary) = merge(batches, MAX_WAITING);
            prop_assert_eq!(seen, (0..all.len() as u64).collect::<Vec<_>>());
            prop_assert_eq!(summary.missing, 0);
        }

        #[test]
        fn any_sequence_numbers_are_taken_and_come_out_ascending(
            batches in proptest::collection::vec(proptest::collection::vec(any::<u64>(), 0..20), 0..20), limit in 0usize..50,
        ) {
            let batches = batches.into_iter().map(|b| b.into_iter().map(|seq| event(seq, 1)).collect()).collect();
            let (seen, _) = merge(batches, limit);
            prop_assert!(seen.is_sorted());
        }
    }

    #[test]
    fn a_hole_is_counted_and_bounded_waiting_gives_it_up() {
        let (seen, summary) =
            merge(vec![vec![event(0, 1), event(3, 1)], vec![event(NO_SEQ, 2)]], MAX_WAITING);
        assert_eq!(seen, [0, 3]);
        assert_eq!((summary.missing, summary.next_seq, summary.unplaced.len()), (2, 4, 1));
        let many: Vec<Vec<Event>> = (1..100).map(|seq| vec![event(seq, 1)]).collect();
        let (seen, summary) = merge(many, 10);
        assert_eq!((seen.len(), summary.missing), (99, 1));
    }

    #[test]
    fn what_waits_goes_on_when_it_is_said_that_nothing_comes_before_it() {
        let (mut merger, mut seen) = (Merger::new(), Vec::new());
        let mut sink = |events: &[Event]| {
            seen.extend(events.iter().map(|event| event.seq));
            ControlFlow::Continue(())
        };
        let _ = merger.push([5, 6, 9].map(|seq| event(seq, 1)).to_vec(), &mut sink);
        assert_eq!(merger.next_seq(), 0);
        merger.give_up_missing(&mut sink);
        assert_eq!(merger.next_seq(), 10);
        let _ = merger.push([8, 10].map(|seq| event(seq, 1)).to_vec(), &mut sink);
        let summary = merger.finish(&mut sink);
        assert_eq!((seen, summary.missing, summary.repeated), (vec![5, 6, 9, 10], 7, 1));
    }

    #[test]
    fn spent_batches_are_given_back_once() {
        let mut merger = Merger::new();
        let sink = &mut |_: &[Event]| ControlFlow::Continue(());
        let _ = merger.push(vec![event(1, 1)], sink);
        assert_eq!(merger.spent().count(), 0, "it waits");
        let _ = merger.push(vec![event(0, 1)], sink);
        assert_eq!((merger.spent().count(), merger.spent().count()), (2, 0));
    }

    #[test]
    fn batches_held_for_one_event_each_do_not_pile_up() {
        let batches: Vec<Vec<Event>> = (0..50u64)
            .map(|batch| {
                let mut events: Vec<Event> = (0..100).map(|i| event(batch * 100 + i, 1)).collect();
                events.push(event(100_000 + batch, 2));
                events
            })
            .collect();
        let (seen, summary) = merge(batches, 60);
        assert_eq!(seen.len(), 5050);
        assert_eq!(summary.missing, 95_000);
    }
}
