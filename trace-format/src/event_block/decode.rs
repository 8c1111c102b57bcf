//! Columns back into rows.
//!
//! Constraint: a trace has billions of rows, and its bytes may be damaged or made up. Consequence: columns are read
//! [`CHUNK_ROWS`] rows at a time, so that what they give stays in the nearest cache; how many numbers each owes for a chunk is
//! known before it is read; and an age is held against the allocations that there were.

use super::chunk::Numbered;
use super::expected::{Expected, Followers};
use super::planes::{CHUNK_ROWS, Chunk, Numbers};
use super::{API, COLUMNS, DEVICE, FLAGS, KIND, MAX_ROWS, RUNS};
use crate::defs::NodeId;
use crate::event::{Event, ThreadId};
use crate::wire::{Cursor, WireError, add_delta};

const LARGEST_SHIFT: u8 = 63;

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
    events.clear();
    events.reserve_exact(rows);
    let mut rows =
        Rows { last: Expected::new(), shift, allocations: Vec::new(), given_back: Vec::new(), events };
    while !columns.kinds.is_empty() {
        chunk.fill(&mut columns, &mut rows)?;
    }
    columns.are_used_up().then_some(()).ok_or(WireError::Range)
}

/// Bytes of a column of which there may be none.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a>(Option<&'a [u8]>);

impl Bytes<'_> {
    /// The next ones.
    pub(super) fn fill(&mut self, values: &mut [u8]) -> Result<(), WireError> {
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
pub(super) struct Columns<'a> {
    pub(super) kinds: &'a [u8],
    pub(super) devices: Bytes<'a>,
    pub(super) apis: Bytes<'a>,
    pub(super) flags: Bytes<'a>,
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
    pub(super) fn fill(&mut self, column: u8, values: &mut Chunk, len: usize) -> Result<(), WireError> {
        self.numbers[usize::from(column)].fill(values, len)
    }

    /// The next values of a column of deltas, each from the one before it.
    pub(super) fn running(
        &mut self,
        column: u8,
        last: &mut u64,
        values: &mut Chunk,
        len: usize,
    ) -> Result<(), WireError> {
        let numbers = &mut self.numbers[usize::from(column)];
        if numbers.zeros(len) {
            values[..len].fill(*last);
            return Ok(());
        }
        numbers.fill(values, len)?;
        for value in &mut values[..len] {
            *last = add_delta(*last, *value);
            *value = *last;
        }
        Ok(())
    }

    /// The next stacks.
    pub(super) fn stacks(
        &mut self,
        column: u8,
        last: &mut Followers,
        ids: &mut [NodeId],
    ) -> Result<(), WireError> {
        let numbers = &mut self.numbers[usize::from(column)];
        if let Some(id) = last.staying()
            && numbers.zeros(ids.len())
        {
            ids.fill(id);
            return Ok(());
        }
        let mut told = [0; CHUNK_ROWS];
        numbers.fill(&mut told, ids.len())?;
        last.hear(&told, ids).then_some(()).ok_or(WireError::Range)
    }

    pub(super) fn threads(&mut self, mut threads: &mut [ThreadId]) -> Result<(), WireError> {
        while !threads.is_empty() {
            if self.left_in_run == 0 {
                self.next_run()?;
            }
            let here = threads.len().min(usize::try_from(self.left_in_run).unwrap_or(usize::MAX));
            let (these, rest) = threads.split_at_mut(here);
            these.fill(self.thread);
            self.left_in_run -= here as u64;
            threads = rest;
        }
        Ok(())
    }

    /// The next one that has rows.
    fn next_run(&mut self) -> Result<(), WireError> {
        // Without the column there is no end to runs of no rows.
        self.numbers[usize::from(RUNS)].len().ok_or(WireError::UnexpectedEnd)?;
        let mut run = [0; CHUNK_ROWS];
        while self.left_in_run == 0 {
            self.fill(RUNS, &mut run, 2)?;
            self.thread = ThreadId(u32::try_from(run[0]).map_err(|_| WireError::Range)?);
            self.left_in_run = run[1];
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
pub(super) struct Rows<'a> {
    pub(super) last: Expected,
    pub(super) shift: u8,
    /// The rows of allocations.
    pub(super) allocations: Vec<u32>,
    /// The addresses of the rows that named one.
    pub(super) given_back: Vec<u64>,
    pub(super) events: &'a mut Vec<Event>,
}
