//! Decodes the payload of an EVENTS block.
//!
//! A trace has billions of rows, and its bytes may be hostile. So rows are decoded in batches
//! ([`RowBatch`]) whose numbers stay in the nearest cache, and every count is checked before memory
//! is reserved for it. A block of 65,536 rows makes 7 MB of events, more than a second-level cache
//! holds, so a reader can take them in chunks. `fuzz/fuzz_targets/readers.rs` feeds it hostile
//! payloads.

use std::ops::ControlFlow;

use super::MAX_ROWS;
use super::decoded_rows::DecodedRows;
use super::event_columns::EventColumns;
use super::row_batch::RowBatch;
use crate::event::Event;
use crate::wire::{Cursor, WireError};

const MAX_SHIFT: u8 = 63;

/// Takes the next events of a block, and returns memory for those after them. Breaks to skip the
/// rest of the block.
pub(crate) type ChunkSink<'a> = dyn FnMut(Vec<Event>) -> ControlFlow<(), Vec<Event>> + 'a;

/// Decodes a payload. Times are multiples of the unit they were encoded in.
#[doc(hidden)]
pub fn decode(payload: &[u8]) -> Result<Vec<Event>, WireError> {
    let mut all = Vec::new();
    EventDecoder::default().decode(payload, MAX_ROWS, &mut |events| {
        all = events;
        ControlFlow::Break(())
    })?;
    Ok(all)
}

/// Decodes one payload after the other with the same memory.
#[derive(Default)]
pub(crate) struct EventDecoder {
    batch: Box<RowBatch>,
    rows: DecodedRows,
    /// Memory for the next events.
    events: Vec<Event>,
}

impl std::fmt::Debug for EventDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventDecoder").finish_non_exhaustive()
    }
}

impl EventDecoder {
    /// Passes the events of a payload to `sink`, `chunk_rows` at a time. An error after the first
    /// chunk concerns only the rows that `sink` has not taken.
    pub(crate) fn decode(
        &mut self,
        payload: &[u8],
        chunk_rows: usize,
        sink: &mut ChunkSink<'_>,
    ) -> Result<(), WireError> {
        let mut cursor = Cursor::new(payload);
        let rows = cursor.count(1)?;
        let shift = cursor.byte()?;
        if rows > MAX_ROWS || shift > MAX_SHIFT {
            return Err(WireError::Limit);
        }
        let mut columns = EventColumns::new(cursor)?;
        if columns.kinds.len() != rows {
            return Err(WireError::Range);
        }
        self.rows.restart(shift);
        loop {
            let mut events = std::mem::take(&mut self.events);
            let here = columns.kinds.len().min(chunk_rows);
            events.clear();
            events.reserve_exact(here);
            while events.len() < here {
                self.batch.fill(&mut columns, &mut self.rows, &mut events)?;
            }
            let is_last = columns.kinds.is_empty();
            if is_last && !columns.are_used_up() {
                return Err(WireError::Range);
            }
            match sink(events) {
                ControlFlow::Continue(memory) => self.events = memory,
                ControlFlow::Break(()) => return Ok(()),
            }
            if is_last {
                return Ok(());
            }
        }
    }
}
