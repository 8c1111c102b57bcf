//! Many events in few bytes: the payload of an EVENTS block.
//!
//! A block decodes on its own, because any other block may be lost: all predictions start anew in
//! every block. Each field is a column, and each byte position of its numbers is a plane, so that
//! zstd packs each plane with its own statistics. Rows are grouped by thread, because neighbours on
//! a thread predict each other. A free names the allocation in the same block by its age and
//! repeats nothing of it.
//!
//! ```text
//! payload = rows:varint  shift:u8  column*         times are in units of 2^shift ns
//! column  = id:u8  length:varint  bytes            unknown ids are skipped; a missing column is all 0
//! numbers = count:varint  plane*                   LEB128 by byte position: the first byte of every
//!                                                  number, then the second byte of those that have one...
//! RUNS    = numbers: thread, rows, thread, rows... of each group of rows
//! KIND    = one byte a row
//! API, FLAGS = one byte a row                      flags bit 7: in flight; bit 6: has a detail
//! DEVICE  = one byte for each row that names no allocation
//! RESULT  = one number a row
//! SEQ     = delta from (previous row's seq + 1)    delta: zigzag of the wrapping difference
//! TIME    = delta from the previous row's time, in units
//! AGE     = one number for each free               0: names no allocation; n: the n-th last allocation
//! REUSE   = one number for each allocation         0: has an ADDR; n: the address of the n-th last free
//!                                                  that names an allocation
//! ADDR    = delta for each row that names no allocation and has no REUSE: allocations and frees from the
//!           first such row of the block, other kinds from the last row of the kind
//! REQUESTED = one number for each detail           of rows that name no allocation, as STREAM and POOL
//! STREAM, POOL = delta from the last such row
//! SIZE    = one number for each row but a block_free that names an allocation; with a detail: delta
//!           from REQUESTED rounded up to 512
//! AUX0, AUX1 = delta from a prediction             block_alloc, block_free: the device's last aux0 plus
//!                                                  or minus size, and its last aux1; other kinds: the
//!                                                  last values of the kind
//! PYTHON, NATIVE = one number a row                0: the node that followed the previous row's node the
//!                                                  last time; n: node n - 1
//! ```

mod allocations;
mod aux_predictor;
mod decode;
mod decoded_rows;
mod encode;
mod event_columns;
mod planes;
mod row_batch;
mod row_predictor;

use crate::event::EventKind;
pub use decode::decode;
pub(crate) use decode::{ChunkSink, EventDecoder};
pub use encode::{EncodedEvents, EventEncoder, encode};

/// Largest number of rows in a block.
const MAX_ROWS: usize = 1 << 20;

const RUNS: u8 = 0;
const KIND: u8 = 1;
const DEVICE: u8 = 2;
const API: u8 = 3;
const FLAGS: u8 = 4;
const RESULT: u8 = 5;
const SEQ: u8 = 6;
const TIME: u8 = 7;
const AGE: u8 = 8;
const ADDR: u8 = 9;
const SIZE: u8 = 10;
const AUX0: u8 = 11;
const AUX1: u8 = 12;
const PYTHON: u8 = 13;
const NATIVE: u8 = 14;
const REQUESTED: u8 = 15;
const STREAM: u8 = 16;
const POOL: u8 = 17;
const REUSE: u8 = 18;
const COLUMNS: usize = 19;

const IN_FLIGHT: u8 = 0x80;
const HAS_DETAIL: u8 = 0x40;
/// PyTorch rounds sizes up to a multiple of its smallest block.
const BLOCK_GRANULARITY_BYTES: u64 = 512;

/// Whether a row is an allocation that later rows of the block may name, or a free that may name
/// one. Part of the format: a kind that changes its pairing makes older readers misread the block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pairing {
    Allocates,
    /// May name an allocation of this kind.
    Frees(EventKind),
    Neither,
}

#[inline]
fn pairing(kind: EventKind) -> Pairing {
    match kind {
        EventKind::BLOCK_ALLOC | EventKind::DEVICE_ALLOC | EventKind::ASYNC_ALLOC => Pairing::Allocates,
        EventKind::BLOCK_FREE => Pairing::Frees(EventKind::BLOCK_ALLOC),
        EventKind::DEVICE_FREE => Pairing::Frees(EventKind::DEVICE_ALLOC),
        EventKind::ASYNC_FREE => Pairing::Frees(EventKind::ASYNC_ALLOC),
        _ => Pairing::Neither,
    }
}

/// True for blocks of PyTorch's allocator.
#[inline]
fn is_torch_block(kind: EventKind) -> bool {
    matches!(kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE)
}

/// A table that was never on the stack: the thread that makes an encoder may have a small one.
#[allow(clippy::unnecessary_box_returns, reason = "the box is the purpose")]
fn boxed_zeros<T: Copy + Default, const N: usize>() -> Box<[T; N]> {
    let table = vec![T::default(); N].into_boxed_slice();
    table.try_into().unwrap_or_else(|_| unreachable!("it has this length"))
}

#[inline]
fn round_up(requested_bytes: u64) -> u64 {
    requested_bytes.wrapping_add(BLOCK_GRANULARITY_BYTES - 1) & !(BLOCK_GRANULARITY_BYTES - 1)
}

#[cfg(test)]
mod tests;
