//! The columns of a payload while they are read.
//!
//! Columns are read [`BATCH_ROWS`] rows at a time. How many numbers a column owes for a batch is
//! known before it is read, and an age is checked against the allocations before it.

use super::planes::{BATCH_ROWS, NumberBatch, NumberColumn};
use super::row_predictor::StackPredictor;
use super::{API, COLUMNS, DEVICE, FLAGS, KIND, RUNS, SEQ};
use crate::ids::{NodeId, ThreadId};
use crate::wire::{Cursor, WireError, add_delta};

/// A column of single bytes; `None` if it is missing, which is any number of zeros.
#[derive(Clone, Copy)]
pub(super) struct ByteColumn<'a>(Option<&'a [u8]>);

impl ByteColumn<'_> {
    /// Reads the next values.
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

/// The columns of a payload, each at its next value.
pub(super) struct EventColumns<'a> {
    pub(super) kinds: &'a [u8],
    pub(super) devices: ByteColumn<'a>,
    pub(super) apis: ByteColumn<'a>,
    pub(super) flags: ByteColumn<'a>,
    numbers: [NumberColumn<'a>; COLUMNS],
    thread: ThreadId,
    left_in_run: u64,
}

impl<'a> EventColumns<'a> {
    pub(super) fn new(mut cursor: Cursor<'a>) -> Result<Self, WireError> {
        let (mut kinds, none): (&[u8], _) = (&[], ByteColumn(None));
        let (mut devices, mut apis, mut flags) = (none, none, none);
        let mut numbers = [NumberColumn::Missing; COLUMNS];
        while !cursor.is_empty() {
            let id = cursor.byte()?;
            let bytes = cursor.bytes()?;
            match id {
                KIND => kinds = bytes,
                DEVICE => devices = ByteColumn(Some(bytes)),
                API => apis = ByteColumn(Some(bytes)),
                FLAGS => flags = ByteColumn(Some(bytes)),
                _ => {
                    if let Some(column) = numbers.get_mut(usize::from(id)) {
                        *column = NumberColumn::new(bytes)?;
                    }
                }
            }
        }
        Ok(Self { kinds, devices, apis, flags, numbers, thread: ThreadId(0), left_in_run: 0 })
    }

    #[inline]
    pub(super) fn fill(&mut self, column: u8, values: &mut NumberBatch, len: usize) -> Result<(), WireError> {
        self.numbers[usize::from(column)].fill(values, len)
    }

    /// Reads the next values of a column of deltas, each from the value before it.
    pub(super) fn fill_running(
        &mut self,
        column: u8,
        last: &mut u64,
        values: &mut NumberBatch,
        len: usize,
    ) -> Result<(), WireError> {
        let numbers = &mut self.numbers[usize::from(column)];
        if numbers.skip_zeros(len) {
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

    /// Reads the next sequence numbers. Most are one above the number before.
    pub(super) fn fill_seqs(
        &mut self,
        last: &mut u64,
        seqs: &mut NumberBatch,
        len: usize,
    ) -> Result<(), WireError> {
        let numbers = &mut self.numbers[usize::from(SEQ)];
        if numbers.skip_zeros(len) {
            for (seq, above) in seqs[..len].iter_mut().zip(1..) {
                *seq = last.wrapping_add(above);
            }
            *last = last.wrapping_add(len as u64);
            return Ok(());
        }
        numbers.fill(seqs, len)?;
        for seq in &mut seqs[..len] {
            *last = add_delta(last.wrapping_add(1), *seq);
            *seq = *last;
        }
        Ok(())
    }

    /// Reads the next stacks.
    pub(super) fn fill_stacks(
        &mut self,
        column: u8,
        last: &mut StackPredictor,
        ids: &mut [NodeId],
    ) -> Result<(), WireError> {
        let numbers = &mut self.numbers[usize::from(column)];
        if let Some(id) = last.repeating_stack()
            && numbers.skip_zeros(ids.len())
        {
            ids.fill(id);
            return Ok(());
        }
        let mut encoded = [0; BATCH_ROWS];
        numbers.fill(&mut encoded, ids.len())?;
        last.decode(&encoded, ids).then_some(()).ok_or(WireError::Range)
    }

    /// Reads the threads of the next rows.
    pub(super) fn fill_threads(&mut self, mut threads: &mut [ThreadId]) -> Result<(), WireError> {
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

    /// Reads runs up to the next one that has rows.
    fn next_run(&mut self) -> Result<(), WireError> {
        // Without the column, runs of no rows would never end.
        self.numbers[usize::from(RUNS)].len().ok_or(WireError::UnexpectedEnd)?;
        let mut run = [0; BATCH_ROWS];
        while self.left_in_run == 0 {
            self.fill(RUNS, &mut run, 2)?;
            self.thread = ThreadId(u32::try_from(run[0]).map_err(|_| WireError::Range)?);
            self.left_in_run = run[1];
        }
        Ok(())
    }

    pub(super) fn are_used_up(&self) -> bool {
        self.left_in_run == 0
            && self.numbers.iter().all(NumberColumn::is_used_up)
            && [self.devices, self.apis, self.flags].into_iter().all(ByteColumn::is_used_up)
    }
}
