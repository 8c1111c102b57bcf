//! A few rows: the numbers of each column for them, and what these make.
//!
//! Constraint: this is done for every event of every replay. Consequence: what all rows have a number for goes column by column, in
//! loops that fit the registers; what only some have, row by row, and once more for the rows that nearly all are.

use super::decode::{Columns, Rows};
use super::expected::Expected;
use super::expected_aux::{ExpectedAux, is_block};
use super::planes::{CHUNK_ROWS, Chunk};
use super::{
    ADDR, AGE, AUX0, AUX1, HAS_DETAIL, IN_FLIGHT, NATIVE, POOL, PYTHON, REQUESTED, RESULT, REUSE, Role, SEQ,
    SIZE, STREAM, TIME, role, rounded,
};
use crate::defs::NodeId;
use crate::event::{ApiId, Detail, Event, EventKind, ThreadId};
use crate::wire::{WireError, add_delta};

/// The numbers of a few rows.
pub(super) struct Numbered {
    threads: [ThreadId; CHUNK_ROWS],
    apis: [u8; CHUNK_ROWS],
    flags: [u8; CHUNK_ROWS],
    seqs: Chunk,
    times: Chunk,
    aux0s: Chunk,
    aux1s: Chunk,
    results: Chunk,
    pythons: [NodeId; CHUNK_ROWS],
    natives: [NodeId; CHUNK_ROWS],
    /// Of the rows that give back.
    ages: Chunk,
    /// Of the rows that allocate.
    reuses: Chunk,
    /// Of the rows that name no allocation and tell their address.
    addrs: Chunk,
    /// Of the rows that name no allocation.
    devices: [u8; CHUNK_ROWS],
    /// Of those of them that have a detail.
    requested: Chunk,
    streams: Chunk,
    pools: Chunk,
    /// Of the rows that have a size of their own.
    sizes: Chunk,
}

impl Numbered {
    pub(super) fn new() -> Self {
        let none = [0; CHUNK_ROWS];
        Self {
            threads: [ThreadId(0); CHUNK_ROWS],
            apis: [0; CHUNK_ROWS],
            flags: [0; CHUNK_ROWS],
            seqs: none,
            times: none,
            aux0s: none,
            aux1s: none,
            results: none,
            pythons: [NodeId::NONE; CHUNK_ROWS],
            natives: [NodeId::NONE; CHUNK_ROWS],
            ages: none,
            reuses: none,
            addrs: none,
            devices: [0; CHUNK_ROWS],
            requested: none,
            streams: none,
            pools: none,
            sizes: none,
        }
    }

    /// Reads the next rows.
    pub(super) fn fill(&mut self, columns: &mut Columns<'_>, rows: &mut Rows<'_>) -> Result<(), WireError> {
        let here = CHUNK_ROWS.min(columns.kinds.len());
        let (kinds, rest) = columns.kinds.split_at(here);
        columns.kinds = rest;
        columns.threads(&mut self.threads[..here])?;
        columns.apis.fill(&mut self.apis[..here])?;
        columns.flags.fill(&mut self.flags[..here])?;
        columns.fill(SEQ, &mut self.seqs, here)?;
        columns.fill(TIME, &mut self.times, here)?;
        columns.fill(AUX0, &mut self.aux0s, here)?;
        columns.fill(AUX1, &mut self.aux1s, here)?;
        columns.fill(RESULT, &mut self.results, here)?;
        if self.results[..here].iter().fold(0, |all, result| all | result) > u64::from(u16::MAX) {
            return Err(WireError::Range);
        }
        columns.stacks(PYTHON, &mut rows.last.python, &mut self.pythons[..here])?;
        columns.stacks(NATIVE, &mut rows.last.native, &mut self.natives[..here])?;
        let details = self.fill_uneven(columns, rows, kinds)?;
        let begin = rows.events.len();
        self.put_even(rows, kinds);
        match details {
            Details::OfAllBlocks => self.put_blocks(rows, kinds, begin, true)?,
            Details::OfNoBlock => self.put_blocks(rows, kinds, begin, false)?,
            Details::Mixed => self.put_uneven(rows, kinds, begin)?,
        }
        self.put_aux(&mut rows.last.aux, &mut rows.events[begin..]);
        Ok(())
    }

    /// The columns in which not every row has a number.
    fn fill_uneven(
        &mut self,
        columns: &mut Columns<'_>,
        rows: &mut Rows<'_>,
        kinds: &[u8],
    ) -> Result<Details, WireError> {
        let here = kinds.len();
        let ages = count(kinds, |kind| matches!(role(EventKind(kind)), Role::GivesBack(_)));
        columns.fill(AGE, &mut self.ages, ages)?;
        let alone = here - self.ages[..ages].iter().filter(|age| **age > 0).count();
        let blocks = count(kinds, |kind| is_block(EventKind(kind)));
        let which = match count(&self.flags[..here], |flags| flags & HAS_DETAIL != 0) {
            _ if blocks < here => Details::Mixed,
            0 => Details::OfNoBlock,
            all if all == here => Details::OfAllBlocks,
            _ => Details::Mixed,
        };
        let (details, sizes) = match which {
            Details::OfAllBlocks => (alone, alone),
            Details::OfNoBlock => (0, alone),
            Details::Mixed => self.details_and_sizes(kinds),
        };
        let allocations = count(kinds, |kind| role(EventKind(kind)) == Role::Allocates);
        columns.fill(REUSE, &mut self.reuses, allocations)?;
        let reuses = self.reuses[..allocations].iter().filter(|reuse| **reuse > 0).count();
        let addrs = alone - reuses;
        columns.fill(ADDR, &mut self.addrs, addrs)?;
        columns.devices.fill(&mut self.devices[..alone])?;
        columns.fill(REQUESTED, &mut self.requested, details)?;
        columns.running(STREAM, &mut rows.last.stream, &mut self.streams, details)?;
        columns.running(POOL, &mut rows.last.pool, &mut self.pools, details)?;
        columns.fill(SIZE, &mut self.sizes, sizes)?;
        if !matches!(which, Details::Mixed) {
            // All of them at once, because nothing depends on the kind of a row.
            rows.last.heard_addrs(&mut self.addrs[..addrs]);
            for (size, requested) in self.sizes.iter_mut().zip(&self.requested).take(details) {
                *size = add_delta(rounded(*requested), *size);
            }
        }
        Ok(which)
    }

    /// How many rows say a detail, and how many a size.
    fn details_and_sizes(&self, kinds: &[u8]) -> (usize, usize) {
        let (mut details, mut sizes, mut age) = (0, 0, 0);
        for (kind, flags) in kinds.iter().zip(&self.flags) {
            let mut names = false;
            if matches!(role(EventKind(*kind)), Role::GivesBack(_)) {
                names = self.ages[age] > 0;
                age += 1;
            }
            details += usize::from(!names && flags & HAS_DETAIL != 0);
            sizes += usize::from(!(names && *kind == EventKind::BLOCK_FREE.0));
        }
        (details, sizes)
    }

    /// What each row has a number for. The rest is put in its place after that.
    fn put_even(&self, rows: &mut Rows<'_>, kinds: &[u8]) {
        let Expected { mut seq, mut units, .. } = rows.last;
        rows.events.extend(kinds.iter().enumerate().map(|(row, kind)| {
            seq = add_delta(seq.wrapping_add(1), self.seqs[row]);
            units = add_delta(units, self.times[row]);
            let flags = self.flags[row];
            Event {
                seq,
                time_ns: units << rows.shift,
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
        (rows.last.seq, rows.last.units) = (seq, units);
    }

    /// What lies where, if all rows are blocks of PyTorch's, as nearly always.
    fn put_blocks(
        &self,
        rows: &mut Rows<'_>,
        kinds: &[u8],
        begin: usize,
        has_details: bool,
    ) -> Result<(), WireError> {
        let (mut ages, mut reuses, mut addrs) = (self.ages.iter(), self.reuses.iter(), self.addrs.iter());
        let mut alone = 0;
        for (done, kind) in (begin..).zip(kinds) {
            let (before, events) = rows.events.split_at_mut_checked(done).ok_or(WireError::Range)?;
            let event = events.first_mut().ok_or(WireError::Range)?;
            let mut reuse = 0;
            if *kind == EventKind::BLOCK_FREE.0 {
                let age = ages.next().copied().unwrap_or(0);
                if age > 0 {
                    put_made(event, made(before, &rows.allocations, age)?, has_details)?;
                    rows.given_back.push(event.addr);
                    continue;
                }
            } else {
                rows.allocations.push(done as u32);
                reuse = reuses.next().copied().unwrap_or(0);
            }
            event.addr =
                if reuse > 0 { reused(&rows.given_back, reuse)? } else { addrs.next().copied().unwrap_or(0) };
            event.size = self.sizes[alone % CHUNK_ROWS];
            event.device = self.devices[alone % CHUNK_ROWS];
            event.detail = has_details.then(|| self.detail(alone % CHUNK_ROWS));
            alone += 1;
        }
        Ok(())
    }

    /// The same, whatever they are.
    fn put_uneven(&self, rows: &mut Rows<'_>, kinds: &[u8], begin: usize) -> Result<(), WireError> {
        let last = &mut rows.last;
        let mut at = At::default();
        for ((row, kind), done) in kinds.iter().enumerate().zip(begin..) {
            let kind = EventKind(*kind);
            let has_detail = self.flags[row] & HAS_DETAIL != 0;
            let role = role(kind);
            let (mut age, mut reuse) = (0, 0);
            match role {
                Role::Allocates => {
                    rows.allocations.push(done as u32);
                    reuse = self.reuses[at.allocation];
                    at.allocation += 1;
                }
                Role::GivesBack(_) => {
                    age = self.ages[at.age];
                    at.age += 1;
                }
                Role::Other => {}
            }
            let (before, events) = rows.events.split_at_mut_checked(done).ok_or(WireError::Range)?;
            let event = events.first_mut().ok_or(WireError::Range)?;
            if age > 0 {
                put_made(event, made(before, &rows.allocations, age)?, has_detail)?;
                rows.given_back.push(event.addr);
            } else {
                event.addr = if reuse > 0 {
                    reused(&rows.given_back, reuse)?
                } else {
                    at.addr += 1;
                    last.heard_addr(kind, role, self.addrs[at.addr - 1])
                };
                event.device = self.devices[at.alone];
                at.alone += 1;
                event.detail = has_detail.then(|| self.detail(at.detail));
                at.detail += usize::from(has_detail);
            }
            if age == 0 || kind != EventKind::BLOCK_FREE {
                let told = self.sizes[at.size];
                at.size += 1;
                event.size =
                    event.detail.map_or(told, |detail| add_delta(rounded(detail.requested_bytes), told));
            }
        }
        Ok(())
    }

    /// What depends on where it lies and how large it is.
    fn put_aux(&self, aux: &mut ExpectedAux, events: &mut [Event]) {
        for (event, told) in events.iter_mut().zip(self.aux0s.iter().zip(&self.aux1s)) {
            event.aux = aux.heard(event.kind, event.device, event.size, [*told.0, *told.1]);
        }
    }

    #[inline]
    fn detail(&self, at: usize) -> Detail {
        Detail { requested_bytes: self.requested[at], stream: self.streams[at], pool: self.pools[at] }
    }
}

/// The allocation that an age names.
#[inline]
fn made<'a>(before: &'a [Event], allocations: &[u32], age: u64) -> Result<&'a Event, WireError> {
    let number = usize::try_from(age).ok().and_then(|age| allocations.len().checked_sub(age));
    number.and_then(|number| before.get(allocations[number] as usize)).ok_or(WireError::Range)
}

/// The address of what was given back so long ago.
#[inline]
fn reused(given_back: &[u64], reuse: u64) -> Result<u64, WireError> {
    let number = usize::try_from(reuse).ok().and_then(|reuse| given_back.len().checked_sub(reuse));
    number.and_then(|number| given_back.get(number)).copied().ok_or(WireError::Range)
}

/// What a row that names it need not say again.
#[inline]
fn put_made(event: &mut Event, made: &Event, has_detail: bool) -> Result<(), WireError> {
    if made.detail.is_some() != has_detail {
        return Err(WireError::Range);
    }
    (event.addr, event.device, event.size, event.detail) = (made.addr, made.device, made.size, made.detail);
    Ok(())
}

/// What is known of the rows of a chunk.
#[derive(Clone, Copy)]
enum Details {
    /// All are blocks of PyTorch's and have a detail.
    OfAllBlocks,
    /// All are blocks of PyTorch's and none has a detail.
    OfNoBlock,
    /// Anything.
    Mixed,
}

/// Of no more bytes than a chunk has rows: how many are such ones.
#[inline]
fn count(bytes: &[u8], is_one: impl Fn(u8) -> bool) -> usize {
    usize::from(bytes.iter().take(CHUNK_ROWS).map(|byte| u8::from(is_one(*byte))).sum::<u8>())
}

/// Where a chunk's uneven columns stand.
#[derive(Default)]
struct At {
    age: usize,
    allocation: usize,
    addr: usize,
    alone: usize,
    detail: usize,
    size: usize,
}
