//! Columns back into rows.
//!
//! Constraint: a trace has billions of rows, and a varint says only when it is read where the next one begins. Consequence:
//! columns are read one after the other, [`CHUNK_ROWS`] rows at a time, with the cursor in registers and what it gives in the
//! nearest cache; those whose numbers are mostly long are read side by side, so that they hide each other's waiting; and
//! everything that can be wrong is found before the rows are put together, which then cannot fail.

use super::predictor::Predictor;
use super::{
    ADDR, ALL_COLUMNS, API, AUX0, AUX1, COLUMNS, DEVICE, FLAGS, HAS_DETAIL, IN_FLIGHT, KIND, MAX_ROWS,
    NATIVE, POOL, PYTHON, REQUESTED, RESULT, RUNS, SEQ, SIZE, STREAM, TIME,
};
use crate::defs::NodeId;
use crate::event::{ApiId, Detail, Event, EventKind, ThreadId};
use crate::wire::{Cursor, WireError, add_delta};

/// Rows that are decoded together.
const CHUNK_ROWS: usize = 128;

type Numbers = [u64; CHUNK_ROWS];

/// Decodes [`super::encode`].
pub fn decode(payload: &[u8]) -> Result<Vec<Event>, WireError> {
    let mut events = Vec::new();
    decode_into(payload, &mut events)?;
    Ok(events)
}

/// As [`decode`], in the place of what `events` held before.
pub fn decode_into(payload: &[u8], events: &mut Vec<Event>) -> Result<(), WireError> {
    let mut cursor = Cursor::new(payload);
    let rows = cursor.count(COLUMNS - 1)?;
    if rows > MAX_ROWS {
        return Err(WireError::Limit);
    }
    let mut columns = Columns::new(cursor)?;
    let mut chunk = Chunk::new();
    let mut last = Predictor::new();
    events.clear();
    events.reserve_exact(rows);
    while events.len() < rows {
        let here = CHUNK_ROWS.min(rows - events.len());
        let bytes = chunk.fill(&mut columns, &mut last, here)?;
        let mut detail = 0;
        events.extend((0..here).map(|row| chunk.row(row, &bytes, &mut last, &mut detail)));
    }
    columns.are_used_up().then_some(()).ok_or(WireError::Range)
}

/// Where each column stands.
struct Columns<'a> {
    all: [Cursor<'a>; ALL_COLUMNS],
    thread: ThreadId,
    left_in_run: u64,
}

impl<'a> Columns<'a> {
    fn new(mut cursor: Cursor<'a>) -> Result<Self, WireError> {
        let mut found: [Option<Cursor<'_>>; ALL_COLUMNS] = [None; ALL_COLUMNS];
        while !cursor.is_empty() {
            let id = cursor.byte()?;
            let bytes = cursor.bytes()?;
            if let Some(column) = found.get_mut(id as usize) {
                *column = Some(Cursor::new(bytes));
            }
        }
        if found[..COLUMNS].iter().any(Option::is_none) {
            return Err(WireError::UnexpectedEnd);
        }
        let all = found.map(|column| column.unwrap_or(Cursor::new(&[])));
        Ok(Self { all, thread: ThreadId(0), left_in_run: 0 })
    }

    fn bytes(&mut self, column: u8, len: usize) -> Result<&'a [u8], WireError> {
        self.all[column as usize].take(len)
    }

    /// The next values of a column of varints.
    fn numbers(
        &mut self,
        column: u8,
        values: &mut [u64],
        mut of: impl FnMut(u64) -> u64,
    ) -> Result<(), WireError> {
        // A copy, so that it stays in registers.
        let mut cursor = self.all[column as usize];
        // What was predicted right.
        if cursor.zeros(values.len()) {
            values.fill_with(|| of(0));
            self.all[column as usize] = cursor;
            return Ok(());
        }
        let mut eights = values.chunks_exact_mut(8);
        for eight in &mut eights {
            if let Some(bytes) = cursor.eight_short_varints() {
                for (value, byte) in eight.iter_mut().zip(bytes) {
                    *value = of(u64::from(byte));
                }
                continue;
            }
            for value in eight {
                *value = of(cursor.varint()?);
            }
        }
        for value in eights.into_remainder() {
            *value = of(cursor.varint()?);
        }
        self.all[column as usize] = cursor;
        Ok(())
    }

    fn threads(&mut self, mut threads: &mut [ThreadId]) -> Result<(), WireError> {
        while !threads.is_empty() {
            while self.left_in_run == 0 {
                self.thread = ThreadId(self.all[RUNS as usize].varint_u32()?);
                self.left_in_run = self.all[RUNS as usize].varint()?;
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
        self.left_in_run == 0 && self.all.iter().all(Cursor::is_empty)
    }
}

/// Columns of one byte a row.
struct Bytes<'a> {
    kinds: &'a [u8],
    devices: &'a [u8],
    apis: &'a [u8],
    flags: &'a [u8],
}

/// The numbers of a few rows.
struct Chunk {
    threads: [ThreadId; CHUNK_ROWS],
    seqs: Numbers,
    times: Numbers,
    addrs: Numbers,
    sizes: Numbers,
    aux0s: Numbers,
    aux1s: Numbers,
    results: Numbers,
    pythons: Numbers,
    natives: Numbers,
    /// Of the rows that have a detail, one after the other.
    requested: Numbers,
    streams: Numbers,
    pools: Numbers,
}

impl Chunk {
    fn new() -> Self {
        let none = [0; CHUNK_ROWS];
        Self {
            threads: [ThreadId(0); CHUNK_ROWS],
            seqs: none,
            times: none,
            addrs: none,
            sizes: none,
            aux0s: none,
            aux1s: none,
            results: none,
            pythons: none,
            natives: none,
            requested: none,
            streams: none,
            pools: none,
        }
    }

    /// Reads the next rows' numbers. Of `last` it leads what is the same whatever the kind of a row.
    fn fill<'a>(
        &mut self,
        columns: &mut Columns<'a>,
        last: &mut Predictor,
        here: usize,
    ) -> Result<Bytes<'a>, WireError> {
        columns.threads(&mut self.threads[..here])?;
        columns.numbers(SEQ, &mut self.seqs[..here], |folded| {
            last.seq = add_delta(last.seq.wrapping_add(1), folded);
            last.seq
        })?;
        self.fill_long(columns, last, here)?;
        columns.numbers(AUX0, &mut self.aux0s[..here], |folded| folded)?;
        columns.numbers(AUX1, &mut self.aux1s[..here], |folded| folded)?;
        columns.numbers(RESULT, &mut self.results[..here], |value| value)?;
        columns.numbers(NATIVE, &mut self.natives[..here], |value| value)?;
        let all_bits = |values: &Numbers| values[..here].iter().fold(0, |all, value| all | value);
        if all_bits(&self.results) > u64::from(u16::MAX)
            || all_bits(&self.pythons) | all_bits(&self.natives) > u64::from(u32::MAX)
        {
            return Err(WireError::Range);
        }
        let bytes = Bytes {
            kinds: columns.bytes(KIND, here)?,
            devices: columns.bytes(DEVICE, here)?,
            apis: columns.bytes(API, here)?,
            flags: columns.bytes(FLAGS, here)?,
        };
        let details = bytes.flags.iter().filter(|flags| **flags & HAS_DETAIL != 0).count();
        columns.numbers(REQUESTED, &mut self.requested[..details], |folded| folded)?;
        columns.numbers(STREAM, &mut self.streams[..details], |folded| {
            last.detail.stream = add_delta(last.detail.stream, folded);
            last.detail.stream
        })?;
        columns.numbers(POOL, &mut self.pools[..details], |folded| {
            last.detail.pool = add_delta(last.detail.pool, folded);
            last.detail.pool
        })?;
        Ok(bytes)
    }

    /// The columns whose numbers are mostly longer than a byte, side by side.
    fn fill_long(
        &mut self,
        columns: &mut Columns<'_>,
        last: &mut Predictor,
        here: usize,
    ) -> Result<(), WireError> {
        let mut cursors = [TIME, ADDR, SIZE, PYTHON].map(|column| columns.all[column as usize]);
        let (mut time_ns, mut addr) = (last.time_ns, last.addr);
        let rows = self.times.iter_mut().zip(&mut self.addrs).zip(&mut self.sizes).zip(&mut self.pythons);
        for (((time, at), size), python) in rows.take(here) {
            time_ns = add_delta(time_ns, cursors[0].medium_varint()?);
            addr = add_delta(addr, cursors[1].long_varint()?);
            (*time, *at) = (time_ns, addr);
            (*size, *python) = (cursors[2].medium_varint()?, cursors[3].medium_varint()?);
        }
        (last.time_ns, last.addr) = (time_ns, addr);
        for (column, cursor) in [TIME, ADDR, SIZE, PYTHON].into_iter().zip(cursors) {
            columns.all[column as usize] = cursor;
        }
        Ok(())
    }

    /// One of the rows; to be asked for one after the other. `detail` counts those with a detail.
    #[inline(always)]
    #[allow(clippy::inline_always)] // An event that is passed in memory costs more than all that is done here.
    fn row(&self, row: usize, bytes: &Bytes<'_>, last: &mut Predictor, detail: &mut usize) -> Event {
        let (kind, device, flags) = (EventKind(bytes.kinds[row]), bytes.devices[row], bytes.flags[row]);
        let (addr, size) = (self.addrs[row], self.sizes[row]);
        let [aux0, aux1] = last.aux(kind, device, size);
        let aux = [add_delta(aux0, self.aux0s[row]), add_delta(aux1, self.aux1s[row])];
        last.learn_aux(kind, device, aux);
        let has_detail = flags & HAS_DETAIL != 0;
        let detail = has_detail.then(|| {
            let at = *detail;
            *detail += 1;
            let requested_bytes = add_delta(last.requested(addr, size), self.requested[at]);
            last.learn_requested(addr, requested_bytes);
            Detail { requested_bytes, stream: self.streams[at], pool: self.pools[at] }
        });
        Event {
            seq: self.seqs[row],
            time_ns: self.times[row],
            thread: self.threads[row],
            kind,
            device,
            api: ApiId(bytes.apis[row]),
            flags: flags & !(IN_FLIGHT | HAS_DETAIL),
            result: self.results[row] as u16,
            in_flight: flags & IN_FLIGHT != 0,
            addr,
            size,
            aux,
            python_stack: NodeId(self.pythons[row] as u32),
            native_stack: NodeId(self.natives[row] as u32),
            detail,
        }
    }
}
