//! Many events in few bytes: the payload of a ROWS block.
//!
//! Constraint: blocks must decode on their own (one may be lost), and what a training loop repeats, or a random one makes up,
//! must cost no more than it says. Consequence: one column per field and in it one plane for each byte of its numbers, so that
//! each plane is packed by its own statistics; predictors that start anew in every block; rows that are grouped by thread,
//! because a thread's neighbours predict each other; and what gives memory back names the allocation in the same block by its
//! age, and repeats nothing of it.
//!
//! ```text
//! payload = rows:varint  shift:u8  column*         times are told in units of 2^shift ns
//! column  = id:u8  length:varint  bytes            unknown ids are skipped; one that is not there is all 0
//! numbers = count:varint  plane*                   LEB128, but first bytes first: the first byte of each number, then the
//!                                                  second byte of those that have one, and so on
//! RUNS    = numbers: thread, rows, thread, rows... of each group of rows
//! KIND    = a byte a row
//! API, FLAGS = a byte a row                        flags bit 7: in flight; bit 6: has a detail
//! DEVICE  = a byte for each row that names no allocation
//! RESULT  = number a row
//! SEQ     = delta from (previous row's seq + 1)    delta: zigzag of the wrapping difference
//! TIME    = delta from the previous row's time, in units
//! AGE     = number for each row that gives back    0: names no allocation; n: the n-th last allocation before it
//! REUSE   = number for each allocation             0: says nothing of its address; n: that of the n-th last row that named one
//! ADDR    = delta for each row that names none and allocations without REUSE: of allocations and what gives back: from
//!           the first such row of the block; of other kinds: from the last row of that kind
//! REQUESTED = number for each detail               of rows that name no allocation, as STREAM and POOL
//! STREAM, POOL = delta from the last such row
//! SIZE    = number for each row whose size is not that of an allocation it names; with a detail: delta from
//!           REQUESTED rounded up to 512
//! AUX0, AUX1 = delta from their prediction         block_alloc / block_free: the device's last aux0 plus / minus size; the
//!                                                  device's last aux1; all other kinds: the last value of that kind
//! PYTHON, NATIVE = number a row                    0: what followed last time on the row before; n: id n - 1
//! ```

mod chunk;
mod decode;
mod encode;
mod expected;
mod expected_aux;
mod planes;

use crate::event::EventKind;
pub use decode::{decode, decode_into};
pub use encode::{Encoded, Encoder, encode};

/// Most rows one block may have.
pub const MAX_ROWS: usize = 1 << 20;

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
/// What sizes are rounded up to: PyTorch's smallest block.
const ROUNDED_TO: u64 = 512;

/// What an event does to memory, as far as a block's own rows go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Makes something that a later row may name.
    Allocates,
    /// May name what an allocation of this kind made.
    GivesBack(EventKind),
    Other,
}

#[inline]
fn role(kind: EventKind) -> Role {
    match kind {
        EventKind::BLOCK_ALLOC | EventKind::DEVICE_ALLOC | EventKind::ASYNC_ALLOC => Role::Allocates,
        EventKind::BLOCK_FREE => Role::GivesBack(EventKind::BLOCK_ALLOC),
        EventKind::DEVICE_FREE => Role::GivesBack(EventKind::DEVICE_ALLOC),
        EventKind::ASYNC_FREE => Role::GivesBack(EventKind::ASYNC_ALLOC),
        _ => Role::Other,
    }
}

#[inline]
fn rounded(requested_bytes: u64) -> u64 {
    requested_bytes.wrapping_add(ROUNDED_TO - 1) & !(ROUNDED_TO - 1)
}

#[cfg(test)]
mod tests;
