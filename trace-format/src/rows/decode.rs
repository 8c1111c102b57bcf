//! Columns back into rows.
//!
//! Constraint: a trace has billions of rows, and its bytes may be damaged or made up. Consequence: columns are read
//! [`CHUNK_ROWS`] rows at a time, so that what they give stays in the nearest cache; how many numbers each owes for a chunk is
//! known before it is read; and an age is held against the allocations that there were.

use super::expected::Expected;
use super::planes::Numbers;
use super::{
    ADDR, AGE, API, AUX0, AUX1, COLUMNS, DEVICE, FLAGS, HAS_DETAIL, IN_FLIGHT, KIND, MAX_ROWS, NATIVE, POOL,
    PYTHON, REQUESTED, RESULT, REUSE, RUNS, Role, SEQ, SIZE, STREAM, TIME, role, rounded,
};
use crate::defs::NodeId;
use crate::event::{ApiId, Detail, Event, EventKind, ThreadId};
use crate::wire::{Cursor, WireError, add_delta};

/// Rows that are decoded together.
const CHUNK_ROWS: usize = 128;
const LARGEST_SHIFT: u8 = 63;

type Chunk = [u64; CHUNK_ROWS];

/// Decodes [`super::encode`]: times are multiples of the unit.
pub fn decode(payload: &[u8]) -> Result<Vec<Event>, WireError> {
    let mut events = Vec::new();
    decode_into(payload, &mut events)?;
    Ok(events)
}

/// As [`decode`], in the place of what `events` held before.
pub fn decode_into(payload: &[u8], events: &mut Vec<Event>) -> Result<(), WireError> {
    let mut cursor = Cursor::new(payload);
    let rows = cursor.count(1)?;
    let shift = cursor.byte()?;
    if rows > MAX_ROWS || shift > LARGEST_SHIFT {
        return Err(WireError::Limit);
    }
    let mut columns = Columns::new(cursor)?;
    if columns.kinds.len() != rows {
        return Err(WireError::Range);
    }
    let mut chunk = Numbered::new();
    // Each is replaced.
    events.resize(rows, Event::new(EventKind::MARK));
    let mut rows = Rows {
        last: Expected::new(),
        shift,
        allocations: Vec::new(),
        given_back: Vec::new(),
        events,
        done: 0,
        of_kind: std::array::from_fn(|kind| role(EventKind(kind as u8))),
    };
    while !columns.kinds.is_empty() {
        chunk.fill(&mut columns, &mut rows)?;
    }
    columns.are_used_up().then_some(()).ok_or(WireError::Range)
}

/// Bytes of a column of which there may be none.
#[derive(Clone, Copy)]
struct Bytes<'a>(Option<&'a [u8]>);

impl Bytes<'_> {
    /// The next ones.
    fn fill(&mut self, values: &mut [u8]) -> Result<(), WireError> {
        let Some(bytes) = &mut self.0 else {
            values.fill(0);
            return Ok(());
        };
        let (here, rest) = bytes.split_at_checked(values.len()).ok_or(WireError::UnexpectedEnd)?;
        values.copy_from_slice(here);
        *bytes = rest;
        Ok(())
    }

    fn is_used_up(self) -> bool {
        self.0.is_none_or(<[u8]>::is_empty)
    }
}

/// Where each column stands.
struct Columns<'a> {
    kinds: &'a [u8],
    devices: Bytes<'a>,
    apis: Bytes<'a>,
    flags: Bytes<'a>,
    numbers: [Numbers<'a>; COLUMNS],
    thread: ThreadId,
    left_in_run: u64,
}

impl<'a> Columns<'a> {
    fn new(mut cursor: Cursor<'a>) -> Result<Self, WireError> {
        let (mut kinds, none): (&[u8], _) = (&[], Bytes(None));
        let (mut devices, mut apis, mut flags) = (none, none, none);
        let mut numbers = [Numbers::Zeros; COLUMNS];
        while !cursor.is_empty() {
            let id = cursor.byte()?;
            let bytes = cursor.bytes()?;
            match id {
                KIND => kinds = bytes,
                DEVICE => devices = Bytes(Some(bytes)),
                API => apis = Bytes(Some(bytes)),
                FLAGS => flags = Bytes(Some(bytes)),
                _ => {
                    if let Some(column) = numbers.get_mut(usize::from(id)) {
                        *column = Numbers::new(bytes)?;
                    }
                }
            }
        }
        Ok(Self { kinds, devices, apis, flags, numbers, thread: ThreadId(0), left_in_run: 0 })
    }

    #[inline]
    fn fill(&mut self, column: u8, values: &mut [u64]) -> Result<(), WireError> {
        self.numbers[usize::from(column)].fill(values)
    }

    fn threads(&mut self, mut threads: &mut [ThreadId]) -> Result<(), WireError> {
        while !threads.is_empty() {
            while self.left_in_run == 0 {
                let mut run = [0; 2];
                // Without the column there is no end to runs of no rows.
                self.numbers[usize::from(RUNS)].len().ok_or(WireError::UnexpectedEnd)?;
                self.fill(RUNS, &mut run)?;
                self.thread = ThreadId(u32::try_from(run[0]).map_err(|_| WireError::Range)?);
                self.left_in_run = run[1];
            }
            let here = threads.len().min(usize::try_from(self.left_in_run).unwrap_or(usize::MAX));
            let (these, rest) = threads.split_at_mut(here);
            these.fill(self.thread);
            self.left_in_run -= here as u64;
            threads = rest;
        }
        Ok(())
    }

    fn are_used_up(&self) -> bool {
        self.left_in_run == 0
            && self.numbers.iter().all(Numbers::is_used_up)
            && [self.devices, self.apis, self.flags].into_iter().all(Bytes::is_used_up)
    }
}

/// What was decoded, and what the next row may refer to.
struct Rows<'a> {
    last: Expected,
    shift: u8,
    /// The rows of allocations.
    allocations: Vec<u32>,
    /// The addresses of the rows that named one.
    given_back: Vec<u64>,
    events: &'a mut [Event],
    /// So many of them are there.
    done: usize,
    of_kind: [Role; 256],
}

/// The numbers of a few rows.
struct Numbered {
    threads: [ThreadId; CHUNK_ROWS],
    apis: [u8; CHUNK_ROWS],
    flags: [u8; CHUNK_ROWS],
    seqs: Chunk,
    times: Chunk,
    aux0s: Chunk,
    aux1s: Chunk,
    results: Chunk,
    pythons: Chunk,
    natives: Chunk,
    /// Of the rows that give back.
    ages: Chunk,
    /// Of the rows that allocate.
    reuses: Chunk,
    /// Of those of the rows that name no allocation that tell their address.
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
    fn new() -> Self {
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
            pythons: none,
            natives: none,
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
    fn fill(&mut self, columns: &mut Columns<'_>, rows: &mut Rows<'_>) -> Result<(), WireError> {
        let here = CHUNK_ROWS.min(columns.kinds.len());
        let (kinds, rest) = columns.kinds.split_at(here);
        columns.kinds = rest;
        columns.threads(&mut self.threads[..here])?;
        columns.apis.fill(&mut self.apis[..here])?;
        columns.flags.fill(&mut self.flags[..here])?;
        columns.fill(SEQ, &mut self.seqs[..here])?;
        columns.fill(TIME, &mut self.times[..here])?;
        columns.fill(AUX0, &mut self.aux0s[..here])?;
        columns.fill(AUX1, &mut self.aux1s[..here])?;
        columns.fill(RESULT, &mut self.results[..here])?;
        columns.fill(PYTHON, &mut self.pythons[..here])?;
        columns.fill(NATIVE, &mut self.natives[..here])?;
        self.fill_uneven(columns, rows, kinds)?;
        let mut at = At::default();
        for (row, kind) in kinds.iter().enumerate() {
            self.row(rows, &mut at, row, EventKind(*kind))?;
        }
        Ok(())
    }

    /// The columns in which not every row has a number.
    fn fill_uneven(
        &mut self,
        columns: &mut Columns<'_>,
        rows: &Rows<'_>,
        kinds: &[u8],
    ) -> Result<(), WireError> {
        let gives_back = |kind: u8| matches!(rows.of_kind[usize::from(kind)], Role::GivesBack(_));
        let allocates = |kind: u8| rows.of_kind[usize::from(kind)] == Role::Allocates;
        let ages = kinds.iter().filter(|kind| gives_back(**kind)).count();
        columns.fill(AGE, &mut self.ages[..ages])?;
        let allocations = kinds.iter().filter(|kind| allocates(**kind)).count();
        columns.fill(REUSE, &mut self.reuses[..allocations])?;
        let reuses = self.reuses[..allocations].iter().filter(|reuse| **reuse > 0).count();
        let (mut alone, mut details, mut sizes, mut age) = (0, 0, 0, 0);
        for (kind, flags) in kinds.iter().zip(&self.flags) {
            let mut names = false;
            if gives_back(*kind) {
                names = self.ages[age] > 0;
                age += 1;
            }
            alone += usize::from(!names);
            details += usize::from(!names && flags & HAS_DETAIL != 0);
            sizes += usize::from(!(names && *kind == EventKind::BLOCK_FREE.0));
        }
        columns.fill(ADDR, &mut self.addrs[..alone - reuses])?;
        columns.devices.fill(&mut self.devices[..alone])?;
        columns.fill(REQUESTED, &mut self.requested[..details])?;
        columns.fill(STREAM, &mut self.streams[..details])?;
        columns.fill(POOL, &mut self.pools[..details])?;
        columns.fill(SIZE, &mut self.sizes[..sizes])
    }

    /// One of the rows; to be asked for one after the other.
    #[inline(always)]
    #[allow(clippy::inline_always)] // What is passed on in memory costs more than much of what is done here.
    fn row(&self, rows: &mut Rows<'_>, at: &mut At, row: usize, kind: EventKind) -> Result<(), WireError> {
        let last = &mut rows.last;
        let flags = self.flags[row];
        let has_detail = flags & HAS_DETAIL != 0;
        let (mut age, mut reuse) = (0, 0);
        match rows.of_kind[usize::from(kind.0)] {
            Role::Allocates => {
                rows.allocations.push(rows.done as u32);
                reuse = self.reuses[at.allocation];
                at.allocation += 1;
            }
            Role::GivesBack(_) => {
                age = self.ages[at.age];
                at.age += 1;
            }
            Role::Other => {}
        }
        let (addr, device, detail, named_size) = if age > 0 {
            let number = usize::try_from(age).ok().and_then(|age| rows.allocations.len().checked_sub(age));
            let made = number.and_then(|number| rows.events.get(rows.allocations[number] as usize));
            let made = made.ok_or(WireError::Range)?;
            if made.detail.is_some() != has_detail {
                return Err(WireError::Range);
            }
            rows.given_back.push(made.addr);
            (made.addr, made.device, made.detail, made.size)
        } else {
            let addr = if reuse > 0 {
                let number =
                    usize::try_from(reuse).ok().and_then(|reuse| rows.given_back.len().checked_sub(reuse));
                *number.and_then(|number| rows.given_back.get(number)).ok_or(WireError::Range)?
            } else {
                let addr = add_delta(last.addr(kind), self.addrs[at.addr]);
                at.addr += 1;
                last.learn_addr(kind, addr);
                addr
            };
            let device = self.devices[at.alone];
            at.alone += 1;
            let mut detail = None;
            if has_detail {
                last.stream = add_delta(last.stream, self.streams[at.detail]);
                last.pool = add_delta(last.pool, self.pools[at.detail]);
                let requested_bytes = self.requested[at.detail];
                at.detail += 1;
                detail = Some(Detail { requested_bytes, stream: last.stream, pool: last.pool });
            }
            (addr, device, detail, 0)
        };
        let size = if age > 0 && kind == EventKind::BLOCK_FREE {
            named_size
        } else {
            let told = self.sizes[at.size];
            at.size += 1;
            detail.map_or(told, |detail| add_delta(rounded(detail.requested_bytes), told))
        };
        last.seq = add_delta(last.seq.wrapping_add(1), self.seqs[row]);
        last.units = add_delta(last.units, self.times[row]);
        let [aux0, aux1] = last.aux(kind, device, size);
        let aux = [add_delta(aux0, self.aux0s[row]), add_delta(aux1, self.aux1s[row])];
        last.learn_aux(kind, device, aux);
        let result = u16::try_from(self.results[row]).map_err(|_| WireError::Range)?;
        let python_stack = NodeId(last.python.hear(self.pythons[row]).ok_or(WireError::Range)?);
        let native_stack = NodeId(last.native.hear(self.natives[row]).ok_or(WireError::Range)?);
        let event = rows.events.get_mut(rows.done).ok_or(WireError::Range)?;
        rows.done += 1;
        *event = Event {
            seq: last.seq,
            time_ns: last.units << rows.shift,
            thread: self.threads[row],
            kind,
            device,
            api: ApiId(self.apis[row]),
            flags: flags & !(IN_FLIGHT | HAS_DETAIL),
            result,
            in_flight: flags & IN_FLIGHT != 0,
            addr,
            size,
            aux,
            python_stack,
            native_stack,
            detail,
        };
        Ok(())
    }
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
