//! Decodes the payload of an EVENTS block.
//!
//! A trace has billions of rows, and its bytes may be hostile. So rows are decoded in batches
//! ([`RowBatch`]) whose numbers stay in the nearest cache, and every count is checked before memory
//! is reserved for it. `fuzz/fuzz_targets/readers.rs` feeds it hostile payloads.

use super::MAX_ROWS;
use super::event_columns::{DecodedRows, EventColumns};
use super::row_batch::RowBatch;
use super::row_predictor::RowPredictor;
use crate::event::Event;
use crate::wire::{Cursor, WireError};

const MAX_SHIFT: u8 = 63;

/// Decodes a payload. Times are multiples of the unit they were encoded in.
#[doc(hidden)]
pub fn decode(payload: &[u8]) -> Result<Vec<Event>, WireError> {
    let mut events = Vec::new();
    decode_into(payload, &mut events)?;
    Ok(events)
}

/// As [`decode`], but replaces the contents of a vector and reuses its memory.
pub(crate) fn decode_into(payload: &[u8], events: &mut Vec<Event>) -> Result<(), WireError> {
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
    let mut batch = RowBatch::new();
    events.clear();
    events.reserve_exact(rows);
    let mut rows = DecodedRows {
        last: RowPredictor::new(),
        shift,
        allocations: Vec::new(),
        freed_addrs: Vec::new(),
        events,
    };
    while !columns.kinds.is_empty() {
        batch.fill(&mut columns, &mut rows)?;
    }
    columns.are_used_up().then_some(()).ok_or(WireError::Range)
}
