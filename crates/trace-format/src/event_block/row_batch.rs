//! A batch of rows: the numbers of each column, and the events they make.
//!
//! This runs for every event of every replay. Columns with a number for each row are decoded column
//! by column, in loops that fit the registers. Columns with a number for some rows are decoded row
//! by row, with a shorter loop for batches of PyTorch blocks only, which nearly all batches are.

use super::aux_predictor::AuxPredictor;
use super::decoded_rows::{DecodedRows, NamedAllocation};
use super::event_columns::EventColumns;
use super::planes::{BATCH_ROWS, NumberBatch};
use super::{
    ADDR, AGE, AUX0, AUX1, HAS_DETAIL, IN_FLIGHT, NATIVE, POOL, PYTHON, Pairing, REQUESTED, RESULT, REUSE,
    SIZE, STREAM, TIME, is_torch_block, pairing, round_up,
};
use crate::event::{Detail, Event, EventKind};
use crate::ids::{ApiId, NodeId, ThreadId};
use crate::wire::{WireError, add_delta};

/// The numbers of up to [`BATCH_ROWS`] rows, by column.
pub(super) struct RowBatch {
    threads: [ThreadId; BATCH_ROWS],
    apis: [u8; BATCH_ROWS],
    flags: [u8; BATCH_ROWS],
    seqs: NumberBatch,
    times: NumberBatch,
    aux0s: NumberBatch,
    aux1s: NumberBatch,
    results: NumberBatch,
    pythons: [NodeId; BATCH_ROWS],
    natives: [NodeId; BATCH_ROWS],
    /// One for each free.
    ages: NumberBatch,
    /// One for each allocation.
    reuses: NumberBatch,
    /// One for each row that names no allocation and has no REUSE.
    addrs: NumberBatch,
    /// One for each row that names no allocation.
    devices: [u8; BATCH_ROWS],
    /// One for each of those rows that has a detail, as `streams` and `pools`.
    requested: NumberBatch,
    streams: NumberBatch,
    pools: NumberBatch,
    /// One for each row that stores its size.
    sizes: NumberBatch,
}

impl Default for RowBatch {
    fn default() -> Self {
        let none = [0; BATCH_ROWS];
        Self {
            threads: [ThreadId(0); BATCH_ROWS],
            apis: [0; BATCH_ROWS],
            flags: [0; BATCH_ROWS],
            seqs: none,
            times: none,
            aux0s: none,
            aux1s: none,
            results: none,
            pythons: [NodeId::NONE; BATCH_ROWS],
            natives: [NodeId::NONE; BATCH_ROWS],
            ages: none,
            reuses: none,
            addrs: none,
            devices: [0; BATCH_ROWS],
            requested: none,
            streams: none,
            pools: none,
            sizes: none,
        }
    }
}

impl RowBatch {
    /// Decodes the next rows and appends them to `events`.
    pub(super) fn fill(
        &mut self,
        columns: &mut EventColumns<'_>,
        rows: &mut DecodedRows,
        events: &mut Vec<Event>,
    ) -> Result<(), WireError> {
        let here = BATCH_ROWS.min(columns.kinds.len());
        let (kinds, rest) = columns.kinds.split_at(here);
        columns.kinds = rest;
        columns.fill_threads(&mut self.threads[..here])?;
        columns.apis.fill(&mut self.apis[..here])?;
        columns.flags.fill(&mut self.flags[..here])?;
        columns.fill_seqs(&mut rows.last.seq, &mut self.seqs, here)?;
        columns.fill_running(TIME, &mut rows.last.units, &mut self.times, here)?;
        columns.fill(AUX0, &mut self.aux0s, here)?;
        columns.fill(AUX1, &mut self.aux1s, here)?;
        columns.fill(RESULT, &mut self.results, here)?;
        if self.results[..here].iter().fold(0, |all, result| all | result) > u64::from(u16::MAX) {
            return Err(WireError::Range);
        }
        columns.fill_stacks(PYTHON, &mut rows.last.python, &mut self.pythons[..here])?;
        columns.fill_stacks(NATIVE, &mut rows.last.native, &mut self.natives[..here])?;
        let details = self.fill_uneven(columns, rows, kinds)?;
        let begin = events.len();
        self.put_even(rows.shift, kinds, events);
        let events = &mut events[begin..];
        match details {
            DetailPresence::AllBlocks => self.put_blocks::<true>(rows, events)?,
            DetailPresence::NoBlock => self.put_blocks::<false>(rows, events)?,
            DetailPresence::Mixed => self.put_uneven(rows, events)?,
        }
        self.put_aux(&mut rows.last.aux, events);
        Ok(())
    }

    /// Reads the columns in which not every row has a number.
    fn fill_uneven(
        &mut self,
        columns: &mut EventColumns<'_>,
        rows: &mut DecodedRows,
        kinds: &[u8],
    ) -> Result<DetailPresence, WireError> {
        let here = kinds.len();
        let ages = count(kinds, |kind| matches!(pairing(EventKind(kind)), Pairing::Frees(_)));
        columns.fill(AGE, &mut self.ages, ages)?;
        let alone = here - self.ages[..ages].iter().filter(|age| **age > 0).count();
        let blocks = count(kinds, |kind| is_torch_block(EventKind(kind)));
        let which = match count(&self.flags[..here], |flags| flags & HAS_DETAIL != 0) {
            _ if blocks < here => DetailPresence::Mixed,
            0 => DetailPresence::NoBlock,
            all if all == here => DetailPresence::AllBlocks,
            _ => DetailPresence::Mixed,
        };
        let (details, sizes) = match which {
            DetailPresence::AllBlocks => (alone, alone),
            DetailPresence::NoBlock => (0, alone),
            DetailPresence::Mixed => self.count_details_and_sizes(kinds),
        };
        let allocations = count(kinds, |kind| pairing(EventKind(kind)) == Pairing::Allocates);
        columns.fill(REUSE, &mut self.reuses, allocations)?;
        let reuses = self.reuses[..allocations].iter().filter(|reuse| **reuse > 0).count();
        let addrs = alone - reuses;
        columns.fill(ADDR, &mut self.addrs, addrs)?;
        columns.devices.fill(&mut self.devices[..alone])?;
        columns.fill(REQUESTED, &mut self.requested, details)?;
        columns.fill_running(STREAM, &mut rows.last.stream, &mut self.streams, details)?;
        columns.fill_running(POOL, &mut rows.last.pool, &mut self.pools, details)?;
        columns.fill(SIZE, &mut self.sizes, sizes)?;
        if !matches!(which, DetailPresence::Mixed) {
            // All at once: nothing depends on the kind of a row.
            rows.last.decode_addrs(&mut self.addrs[..addrs]);
            for (size, requested) in self.sizes.iter_mut().zip(&self.requested).take(details) {
                *size = add_delta(round_up(*requested), *size);
            }
        }
        Ok(which)
    }

    /// How many rows store a detail, and how many a size.
    fn count_details_and_sizes(&self, kinds: &[u8]) -> (usize, usize) {
        let (mut details, mut sizes, mut age) = (0, 0, 0);
        for (kind, flags) in kinds.iter().zip(&self.flags) {
            let mut names = false;
            if matches!(pairing(EventKind(*kind)), Pairing::Frees(_)) {
                names = self.ages[age] > 0;
                age += 1;
            }
            details += usize::from(!names && flags & HAS_DETAIL != 0);
            sizes += usize::from(!(names && *kind == EventKind::BLOCK_FREE.0));
        }
        (details, sizes)
    }

    /// Appends the rows with the fields that each row has a number for.
    fn put_even(&self, shift: u8, kinds: &[u8], events: &mut Vec<Event>) {
        events.extend(kinds.iter().enumerate().map(|(row, kind)| {
            let flags = self.flags[row];
            Event {
                seq: self.seqs[row],
                time_ns: self.times[row] << shift,
                thread: self.threads[row],
                kind: EventKind(*kind),
                device: 0,
                api: ApiId(self.apis[row]),
                flags: flags & !(IN_FLIGHT | HAS_DETAIL),
                result: self.results[row] as u16,
                in_flight: flags & IN_FLIGHT != 0,
                addr: 0,
                size: 0,
                aux: [0; 2],
                python_stack: self.pythons[row],
                native_stack: self.natives[row],
                detail: None,
            }
        }));
    }

    /// Sets address, size, device and detail in a batch of PyTorch blocks, all with a detail or
    /// none.
    fn put_blocks<const HAS_DETAILS: bool>(
        &self,
        rows: &mut DecodedRows,
        events: &mut [Event],
    ) -> Result<(), WireError> {
        let (mut ages, mut reuses, mut addrs) = (self.ages.iter(), self.reuses.iter(), self.addrs.iter());
        let mut alone = 0;
        for event in events {
            let is_free = event.kind == EventKind::BLOCK_FREE;
            let mut reuse = 0;
            if is_free {
                let age = ages.next().copied().unwrap_or(0);
                if age > 0 {
                    rows.copy_named(event, age, HAS_DETAILS)?;
                    continue;
                }
            } else {
                reuse = reuses.next().copied().unwrap_or(0);
            }
            let addr = if reuse > 0 { rows.reused_addr(reuse)? } else { addrs.next().copied().unwrap_or(0) };
            let (size, device) = (self.sizes[alone % BATCH_ROWS], self.devices[alone % BATCH_ROWS]);
            let detail = HAS_DETAILS.then(|| self.detail(alone % BATCH_ROWS));
            alone += 1;
            let allocation = NamedAllocation { addr, size, device, detail };
            allocation.copy_to(event);
            if !is_free {
                rows.add_allocation(allocation);
            }
        }
        Ok(())
    }

    /// Sets address, size, device and detail in any batch.
    fn put_uneven(&self, rows: &mut DecodedRows, events: &mut [Event]) -> Result<(), WireError> {
        let mut at = BatchCursor::default();
        for (event, flags) in events.iter_mut().zip(&self.flags) {
            let kind = event.kind;
            let has_detail = flags & HAS_DETAIL != 0;
            let pairing = pairing(kind);
            let (mut age, mut reuse) = (0, 0);
            match pairing {
                Pairing::Allocates => {
                    reuse = self.reuses[at.allocation];
                    at.allocation += 1;
                }
                Pairing::Frees(_) => {
                    age = self.ages[at.age];
                    at.age += 1;
                }
                Pairing::Neither => {}
            }
            if age > 0 {
                rows.copy_named(event, age, has_detail)?;
            } else {
                event.addr = if reuse > 0 {
                    rows.reused_addr(reuse)?
                } else {
                    at.addr += 1;
                    rows.last.decode_addr(kind, pairing, self.addrs[at.addr - 1])
                };
                event.device = self.devices[at.alone];
                at.alone += 1;
                event.detail = has_detail.then(|| self.detail(at.detail));
                at.detail += usize::from(has_detail);
            }
            if age == 0 || kind != EventKind::BLOCK_FREE {
                let number = self.sizes[at.size];
                at.size += 1;
                event.size =
                    event.detail.map_or(number, |detail| add_delta(round_up(detail.requested_bytes), number));
            }
            if pairing == Pairing::Allocates {
                let Event { addr, size, device, detail, .. } = *event;
                rows.add_allocation(NamedAllocation { addr, size, device, detail });
            }
        }
        Ok(())
    }

    /// Sets aux. Its prediction depends on kind, device and size.
    fn put_aux(&self, aux: &mut AuxPredictor, events: &mut [Event]) {
        for (event, deltas) in events.iter_mut().zip(self.aux0s.iter().zip(&self.aux1s)) {
            event.aux = aux.decode(event.kind, event.device, event.size, [*deltas.0, *deltas.1]);
        }
    }

    #[inline]
    fn detail(&self, at: usize) -> Detail {
        Detail { requested_bytes: self.requested[at], stream: self.streams[at], pool: self.pools[at] }
    }
}

/// Which rows of a batch have a detail.
#[derive(Clone, Copy)]
enum DetailPresence {
    /// All rows are PyTorch blocks with a detail.
    AllBlocks,
    /// All rows are PyTorch blocks without a detail.
    NoBlock,
    /// A row that neither allocates nor frees.
    Mixed,
}

/// Counts bytes. Counts in slices, so that a byte holds each count.
#[inline]
fn count(bytes: &[u8], is_one: impl Fn(u8) -> bool) -> usize {
    let slices = bytes.chunks(BATCH_ROWS / 2);
    slices.map(|some| usize::from(some.iter().map(|byte| u8::from(is_one(*byte))).sum::<u8>())).sum()
}

/// The next number of each column in which not every row has one.
#[derive(Default)]
struct BatchCursor {
    age: usize,
    allocation: usize,
    addr: usize,
    alone: usize,
    detail: usize,
    size: usize,
}
