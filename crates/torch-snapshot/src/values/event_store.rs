//! The events of a snapshot in a few bytes each.
//!
//! A row is one byte for the action and varints for the rest; addresses and times are differences
//! to the row before. Every [`ROWS_PER_CHUNK`] rows a new chunk begins, which decodes on its own,
//! so a list may begin at any event.

use super::{TextId, TorchStack};
use crate::error::SnapshotError;

/// Most events of a file.
const MAX_EVENTS: usize = 1 << 28;
const ROWS_PER_CHUNK: usize = 4096;

/// Consecutive events of [`EventStore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EventRun {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// What an event of PyTorch's allocator says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum EventAction {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Snapshot,
    OutOfMemory,
    Annotate,
    /// An action that this version does not know.
    Unknown,
}

impl EventAction {
    const ALL: [Self; 11] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::OutOfMemory,
        Self::Annotate,
        Self::Unknown,
    ];
}

/// An event as the file has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StoredEvent {
    pub(crate) action: EventAction,
    /// Address; of [`EventAction::OutOfMemory`] the bytes that the driver reported as free.
    pub(crate) addr: u64,
    /// Bytes that were requested, or bytes of a segment.
    pub(crate) size: u64,
    pub(crate) stream: u64,
    /// The packed id of the pool, or [`gpumemtrace_format::event::NO_POOL`].
    pub(crate) pool: u64,
    /// Microseconds of the wall clock; `None` in files of PyTorch 2.0.
    pub(crate) time_us: Option<u64>,
    pub(crate) stack: Option<TorchStack>,
    /// The category of the block, or what `torch.cuda.memory._set_memory_metadata` had set; the
    /// empty text if neither.
    pub(crate) label: TextId,
}

/// All events of a snapshot, in the order of the file.
#[derive(Debug, Default)]
pub(crate) struct EventStore {
    chunks: Vec<Vec<u8>>,
    rows: usize,
    last: RowState,
}

/// What the next row is a difference to.
#[derive(Clone, Copy, Debug, Default)]
struct RowState {
    addr: u64,
    time_us: u64,
}

impl EventStore {
    pub(crate) fn push(&mut self, event: &StoredEvent) -> Result<u32, SnapshotError> {
        if self.rows == MAX_EVENTS {
            return Err(SnapshotError::TooLarge { what: "events", limit: MAX_EVENTS as u64 });
        }
        if self.rows.is_multiple_of(ROWS_PER_CHUNK) {
            self.chunks.last_mut().into_iter().for_each(Vec::shrink_to_fit);
            self.chunks.push(Vec::with_capacity(ROWS_PER_CHUNK * 16));
            self.last = RowState::default();
        }
        let Some(out) = self.chunks.last_mut() else { unreachable!("a chunk was just added") };
        out.push(event.action as u8 | u8::from(event.time_us.is_some()) << 7);
        put_delta(out, self.last.addr, event.addr);
        self.last.addr = event.addr;
        put_varint(out, event.size);
        put_varint(out, event.stream);
        put_varint(out, event.pool.wrapping_add(1));
        if let Some(time_us) = event.time_us {
            put_delta(out, self.last.time_us, time_us);
            self.last.time_us = time_us;
        }
        put_varint(out, event.stack.map_or(0, |stack| u64::from(stack.0) + 1));
        put_varint(out, u64::from(event.label.0));
        self.rows += 1;
        Ok(self.rows as u32 - 1)
    }

    /// The events of a run, in order.
    pub(crate) fn iter(&self, run: EventRun) -> EventIter<'_> {
        let end = (run.first as usize).saturating_add(run.count as usize).min(self.rows);
        let chunk = run.first as usize / ROWS_PER_CHUNK;
        let mut iter = EventIter {
            store: self,
            rest: self.chunks.get(chunk).map_or(&[], Vec::as_slice),
            at: chunk * ROWS_PER_CHUNK,
            end,
            last: RowState::default(),
        };
        while iter.at < (run.first as usize).min(end) && iter.next().is_some() {}
        iter
    }
}

/// Decodes a run of events.
#[derive(Clone, Debug)]
pub(crate) struct EventIter<'a> {
    store: &'a EventStore,
    rest: &'a [u8],
    /// Number of the next event.
    at: usize,
    end: usize,
    last: RowState,
}

impl EventIter<'_> {
    fn varint(&mut self) -> u64 {
        let (mut value, mut shift) = (0u64, 0u32);
        while let Some((byte, rest)) = self.rest.split_first() {
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift.min(63);
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }

    fn delta(&mut self, from: u64) -> u64 {
        let folded = self.varint();
        from.wrapping_add((folded >> 1) ^ (folded & 1).wrapping_neg())
    }
}

impl Iterator for EventIter<'_> {
    type Item = StoredEvent;

    fn next(&mut self) -> Option<StoredEvent> {
        if self.at >= self.end {
            return None;
        }
        if self.rest.is_empty() {
            self.rest = self.store.chunks.get(self.at / ROWS_PER_CHUNK)?;
            self.last = RowState::default();
        }
        let (head, rest) = self.rest.split_first()?;
        self.rest = rest;
        self.at += 1;
        self.last.addr = self.delta(self.last.addr);
        let (size, stream) = (self.varint(), self.varint());
        let pool = self.varint().wrapping_sub(1);
        let time_us = (head & 0x80 != 0).then(|| {
            self.last.time_us = self.delta(self.last.time_us);
            self.last.time_us
        });
        let stack = self.varint().checked_sub(1).map(|stack| TorchStack(stack as u32));
        Some(StoredEvent {
            action: EventAction::ALL[usize::from(head & 0x7f).min(EventAction::ALL.len() - 1)],
            addr: self.last.addr,
            size,
            stream,
            pool,
            time_us,
            stack,
            label: TextId(self.varint() as u32),
        })
    }
}

fn put_varint(out: &mut Vec<u8>, value: u64) {
    gpumemtrace_format::put_varint(out, value);
}

fn put_delta(out: &mut Vec<u8>, previous: u64, value: u64) {
    gpumemtrace_format::put_delta(out, previous, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_event() -> impl Strategy<Value = StoredEvent> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        (0usize..11, numbers, any::<Option<u64>>(), any::<Option<u16>>(), any::<u16>()).prop_map(
            |(action, (addr, size, stream, pool), time_us, stack, label)| StoredEvent {
                action: EventAction::ALL[action],
                addr,
                size,
                stream,
                pool,
                time_us,
                stack: stack.map(|stack| TorchStack(u32::from(stack))),
                label: TextId(u32::from(label)),
            },
        )
    }

    proptest! {
        #[test]
        fn every_run_decodes_to_what_was_stored(
            events in proptest::collection::vec(any_event(), 1..40), repeat in 1usize..300, first: u16, count: u16,
        ) {
            let mut store = EventStore::default();
            let all: Vec<StoredEvent> = (0..repeat).flat_map(|_| events.iter().copied()).collect();
            for event in &all {
                store.push(event).unwrap();
            }
            let run = EventRun { first: u32::from(first), count: u32::from(count) };
            let expected: Vec<_> = all.iter().skip(first.into()).take(count.into()).copied().collect();
            prop_assert_eq!(store.iter(run).collect::<Vec<_>>(), expected);
        }
    }
}
