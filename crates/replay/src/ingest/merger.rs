//! Merges event blocks into the process-wide order of sequence numbers.
//!
//! Constraint: a block groups its events by thread, and consecutive blocks overlap in time. The
//! last records of a killed process may be both in a block and in the ring, and a damaged block
//! leaves a gap. The file may be far larger than memory. Consequence: [`Merger`] merges ascending
//! runs through a heap with one entry per run instead of per event. It drops repeated sequence
//! numbers, and skips and counts a missing one once [`MAX_WAITING`] later events wait for it. The
//! property tests below check the order for arbitrary blocks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::{ControlFlow, Range};

use gpumemtrace_format::{Event, NO_SEQ};

use crate::ingest::event_batch::EventBatch;

/// Events that may wait for a missing sequence number.
pub(crate) const MAX_WAITING: usize = 1 << 20;
/// Longest slice passed to the sink at once: few enough to stay in the L1 cache.
const MAX_SLICE_EVENTS: usize = 64;
/// Limit of stored events without a sequence number; at most one per thread is expected.
const MAX_UNPLACED: usize = 1 << 16;

/// The rest of an ascending run: `batches[batch].events[at..end]`, ordered by its next number.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct ThreadRun {
    seq: u64,
    batch: usize,
    at: usize,
    end: usize,
    /// The piece of the batch that contains `at`.
    piece: usize,
}

/// Events with consecutive sequence numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergedSlice<'a> {
    pub(crate) events: &'a [Event],
    /// As given to [`EventBatch::new`].
    pub(crate) needs_check: bool,
}

/// Merges batches of events into one ordered stream.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    batches: Vec<Option<EventBatch>>,
    /// Indices in `batches` that are free.
    free_slots: Vec<usize>,
    /// Buffers of batches that were passed on completely, until [`Self::take_spent_buffers`].
    spent: Vec<Vec<Event>>,
    heap: BinaryHeap<Reverse<ThreadRun>>,
    next_seq: u64,
    /// Events that were not passed on.
    waiting: usize,
    /// Events in memory: `waiting` plus the consumed part of unfinished batches.
    resident: usize,
    missing: u64,
    repeated: u64,
    unplaced: Vec<Event>,
    unplaced_not_kept: u64,
    max_waiting: usize,
}

/// Gaps, repetitions and unplaced calls in the order of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderSummary {
    /// One past the highest sequence number.
    pub next_seq: u64,
    /// Sequence numbers below `next_seq` without an event.
    pub missing: u64,
    /// Events that occurred more than once.
    pub repeated: u64,
    /// The first 65,536 calls that had not returned and have no sequence number.
    pub unplaced: Vec<Event>,
}

impl Merger {
    pub(crate) fn new() -> Self {
        Self { max_waiting: MAX_WAITING, ..Self::default() }
    }

    /// The next sequence number to pass on.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Number of sequence numbers that were skipped.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// Takes the buffers of batches that the last [`Self::push`] completed, for reuse. The next
    /// push frees those that remain.
    pub(crate) fn take_spent_buffers(&mut self) -> impl Iterator<Item = Vec<Event>> {
        self.spent.drain(..)
    }

    /// Adds events and passes on, in order, all that wait for no earlier one. Stops when `sink`
    /// breaks; that slice counts as consumed.
    pub(crate) fn push(
        &mut self,
        events: Vec<Event>,
        sink: &mut impl FnMut(MergedSlice<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.push_batch(EventBatch::new(events, true), sink)
    }

    /// Like [`Self::push`], for events that are already split into runs.
    pub(crate) fn push_batch(
        &mut self,
        batch: EventBatch,
        sink: &mut impl FnMut(MergedSlice<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if batch.events.is_empty() {
            return ControlFlow::Continue(());
        }
        self.spent.clear();
        if self.resident > 4 * self.max_waiting {
            self.compact();
        }
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.batches.push(None);
            self.batches.len() - 1
        });
        self.waiting += batch.events.len();
        self.insert_batch(slot, batch);
        self.drain(self.max_waiting, sink)
    }

    fn insert_batch(&mut self, slot: usize, batch: EventBatch) {
        for pieces in batch.runs() {
            let (first, last) = (&batch.pieces[pieces.start], &batch.pieces[pieces.end - 1]);
            self.heap.push(Reverse(ThreadRun {
                seq: first.first_seq,
                batch: slot,
                at: first.begin,
                end: last.end,
                piece: pieces.start,
            }));
        }
        self.resident += batch.events.len();
        self.batches[slot] = Some(batch);
    }

    /// Passes on all waiting events, and counts the sequence numbers between them as missing.
    pub(crate) fn skip_missing_events(&mut self, sink: &mut impl FnMut(MergedSlice<'_>) -> ControlFlow<()>) {
        let _ = self.drain(0, sink);
    }

    /// The numbers for which events wait; `None` if none wait.
    pub(crate) fn awaited(&self) -> Option<Range<u64>> {
        let top = self.heap.peek().filter(|Reverse(top)| top.seq != NO_SEQ);
        top.map(|Reverse(top)| self.next_seq..top.seq)
    }

    /// Waits no more for the numbers below `end`, which do not count as missing, and passes on the
    /// events behind them.
    pub(crate) fn pass_over_to(
        &mut self,
        end: u64,
        sink: &mut impl FnMut(MergedSlice<'_>) -> ControlFlow<()>,
    ) {
        self.next_seq = self.next_seq.max(end);
        let _ = self.drain(self.max_waiting, sink);
    }

    /// Passes on all waiting events and summarizes the order.
    pub(crate) fn finish(
        mut self,
        sink: &mut impl FnMut(MergedSlice<'_>) -> ControlFlow<()>,
    ) -> OrderSummary {
        self.skip_missing_events(sink);
        OrderSummary {
            next_seq: self.next_seq,
            missing: self.missing,
            repeated: self.repeated,
            unplaced: self.unplaced,
        }
    }

    /// Passes on events in order, skipping missing ones while more than `max_waiting` events wait.
    fn drain(
        &mut self,
        max_waiting: usize,
        sink: &mut impl FnMut(MergedSlice<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        while let Some(Reverse(top)) = self.heap.peek() {
            if top.seq > self.next_seq && top.seq != NO_SEQ {
                if self.waiting <= max_waiting {
                    break;
                }
                self.missing = self.missing.saturating_add(top.seq - self.next_seq);
                self.next_seq = top.seq;
            }
            // `peek_mut` sifts the changed run in place; popping and pushing it would sift twice.
            let Some(mut top) = self.heap.peek_mut() else { break };
            let run = &mut top.0;
            let Some(batch) = self.batches[run.batch].as_mut() else {
                PeekMut::pop(top);
                continue;
            };
            let begin = run.at;
            let mut flow = ControlFlow::Continue(());
            // A local copy stays in a register.
            let mut next_seq = self.next_seq;
            // The pieces say which numbers follow, so the sink is the first to touch the events.
            while run.at < run.end && flow.is_continue() {
                let piece_end = batch.pieces[run.piece].end;
                if run.seq == NO_SEQ {
                    if self.unplaced.len() < MAX_UNPLACED {
                        self.unplaced.push(batch.events[run.at]);
                    } else {
                        self.unplaced_not_kept += 1;
                    }
                    run.at += 1;
                } else if run.seq <= next_seq {
                    let repeated = (next_seq - run.seq).min((piece_end - run.at) as u64);
                    self.repeated += repeated;
                    run.at += repeated as usize;
                    let events = &batch.events[run.at..piece_end.min(run.at + MAX_SLICE_EVENTS)];
                    run.at += events.len();
                    run.seq += repeated + events.len() as u64;
                    next_seq += events.len() as u64;
                    if !events.is_empty() {
                        flow = sink(MergedSlice { events, needs_check: batch.needs_check });
                    }
                } else {
                    break;
                }
                if run.at == piece_end && run.at < run.end {
                    run.piece += 1;
                    run.seq = batch.pieces[run.piece].first_seq;
                }
            }
            self.next_seq = next_seq;
            self.waiting -= run.at - begin;
            if run.at == run.end {
                let Reverse(run) = PeekMut::pop(top);
                batch.pending_runs -= 1;
                if batch.pending_runs == 0 {
                    self.resident -= batch.events.len();
                    self.spent.extend(self.batches[run.batch].take().map(|batch| batch.events));
                    self.free_slots.push(run.batch);
                }
            }
            flow?;
        }
        ControlFlow::Continue(())
    }

    /// Copies the waiting events into one batch, to free batches that hold few of them.
    fn compact(&mut self) {
        let mut rest = Vec::with_capacity(self.waiting);
        for Reverse(run) in self.heap.drain() {
            if let Some(batch) = &self.batches[run.batch] {
                rest.extend_from_slice(&batch.events[run.at..run.end]);
            }
        }
        rest.sort_unstable_by_key(|event| event.seq);
        self.batches.clear();
        self.free_slots.clear();
        self.waiting = rest.len();
        self.resident = 0;
        self.batches.push(None);
        self.insert_batch(0, EventBatch::new(rest, true));
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
        let mut seqs = Vec::new();
        let mut sink = |slice: MergedSlice<'_>| {
            seqs.extend(slice.events.iter().map(|event| event.seq));
            ControlFlow::Continue(())
        };
        for batch in batches {
            let _ = merger.push(batch, &mut sink);
        }
        let summary = merger.finish(&mut sink);
        (seqs, summary)
    }

    #[test]
    fn highest_seq_precedes_an_event_without_seq() {
        let (seqs, summary) = merge(vec![vec![event(NO_SEQ - 1, 1), event(NO_SEQ, 1)]], 0);
        assert_eq!((seqs, summary.unplaced.len()), (vec![NO_SEQ - 1], 1));
    }

    proptest! {
        #[test]
        fn events_come_out_in_process_order_for_any_batches(
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
            // Swap neighbouring batches, as happens when the writer drains one thread after
            // another.
            for pair in batches.chunks_exact_mut(2) {
                pair.swap(0, 1);
            }
            let (seqs, summary) = merge(batches, MAX_WAITING);
            prop_assert_eq!(seqs, (0..all.len() as u64).collect::<Vec<_>>());
            prop_assert_eq!(summary.missing, 0);
        }

        #[test]
        fn arbitrary_sequence_numbers_come_out_ascending(
            batches in proptest::collection::vec(proptest::collection::vec(any::<u64>(), 0..20), 0..20), limit in 0usize..50,
        ) {
            let batches = batches.into_iter().map(|b| b.into_iter().map(|seq| event(seq, 1)).collect()).collect();
            let (seqs, _) = merge(batches, limit);
            prop_assert!(seqs.is_sorted());
        }
    }

    #[test]
    fn missing_number_is_counted_and_skipped_at_the_waiting_limit() {
        let (seqs, summary) =
            merge(vec![vec![event(0, 1), event(3, 1)], vec![event(NO_SEQ, 2)]], MAX_WAITING);
        assert_eq!(seqs, [0, 3]);
        assert_eq!((summary.missing, summary.next_seq, summary.unplaced.len()), (2, 4, 1));
        let many: Vec<Vec<Event>> = (1..100).map(|seq| vec![event(seq, 1)]).collect();
        let (seqs, summary) = merge(many, 10);
        assert_eq!((seqs.len(), summary.missing), (99, 1));
    }

    #[test]
    fn skip_missing_events_passes_on_waiting_events() {
        let (mut merger, mut seqs) = (Merger::new(), Vec::new());
        let mut sink = |slice: MergedSlice<'_>| {
            seqs.extend(slice.events.iter().map(|event| event.seq));
            ControlFlow::Continue(())
        };
        let _ = merger.push([5, 6, 9].map(|seq| event(seq, 1)).to_vec(), &mut sink);
        assert_eq!(merger.next_seq(), 0);
        merger.skip_missing_events(&mut sink);
        assert_eq!(merger.next_seq(), 10);
        let _ = merger.push([8, 10].map(|seq| event(seq, 1)).to_vec(), &mut sink);
        let summary = merger.finish(&mut sink);
        assert_eq!((seqs, summary.missing, summary.repeated), (vec![5, 6, 9, 10], 7, 1));
    }

    #[test]
    fn awaited_numbers_can_be_passed_over() {
        let (mut merger, mut seqs, mut over) = (Merger::new(), Vec::new(), Vec::new());
        let mut sink = |slice: MergedSlice<'_>| {
            seqs.extend(slice.events.iter().map(|event| event.seq));
            ControlFlow::Continue(())
        };
        let _ = merger.push([1, 2, 1 << 40, NO_SEQ].map(|seq| event(seq, 1)).to_vec(), &mut sink);
        while let Some(awaited) = merger.awaited() {
            merger.pass_over_to(awaited.end, &mut sink);
            over.push(awaited);
        }
        assert_eq!((merger.next_seq(), merger.missing()), (1 << 40 | 1, 0));
        assert_eq!((over, seqs), (vec![0..1, 3..1 << 40], vec![1, 2, 1 << 40]));
    }

    #[test]
    fn spent_buffers_are_returned_once() {
        let mut merger = Merger::new();
        let sink = &mut |_: MergedSlice<'_>| ControlFlow::Continue(());
        let _ = merger.push(vec![event(1, 1)], sink);
        assert_eq!(merger.take_spent_buffers().count(), 0, "event 1 waits for event 0");
        let _ = merger.push(vec![event(0, 1)], sink);
        assert_eq!((merger.take_spent_buffers().count(), merger.take_spent_buffers().count()), (2, 0));
    }

    #[test]
    fn batches_with_one_waiting_event_each_are_compacted() {
        let batches: Vec<Vec<Event>> = (0..50u64)
            .map(|batch| {
                let mut events: Vec<Event> = (0..100).map(|i| event(batch * 100 + i, 1)).collect();
                events.push(event(100_000 + batch, 2));
                events
            })
            .collect();
        let (seqs, summary) = merge(batches, 60);
        assert_eq!(seqs.len(), 5050);
        assert_eq!(summary.missing, 95_000);
    }
}
