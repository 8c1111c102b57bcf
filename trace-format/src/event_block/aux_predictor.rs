//! What the two numbers of an event that depend on its kind are expected to be.
//!
//! Constraint: a prediction that writer and reader make differently is a wrong number in a report. Consequence: one type makes it
//! for both sides, of blocks of either version. Numbers that are read one by one are kept one by one: a pair that is stored in halves
//! and loaded as a whole makes the processor wait, and the reader does this for every row. The tables are not on the stack: the
//! program whose thread makes an encoder may have a small one.

use crate::event::EventKind;
use crate::wire::add_delta;

/// One for each kind and, after those, one for each device.
const PLACES: usize = 512;

/// What they were last.
pub(super) struct ExpectedAux {
    aux0: Box<[u64; PLACES]>,
    aux1: Box<[u64; PLACES]>,
}

impl ExpectedAux {
    pub(super) fn new() -> Self {
        Self { aux0: zeros(), aux1: zeros() }
    }

    /// What they will be.
    #[inline]
    pub(super) fn get(&self, kind: EventKind, device: u8, size: u64) -> [u64; 2] {
        let place = place(kind, device);
        [self.aux0[place].wrapping_add(growth(kind, size)), self.aux1[place]]
    }

    /// What they were.
    #[inline]
    pub(super) fn learn(&mut self, kind: EventKind, device: u8, aux: [u64; 2]) {
        let place = place(kind, device);
        (self.aux0[place], self.aux1[place]) = (aux[0], aux[1]);
    }

    /// What they are, by how much each differs from what was expected.
    #[inline]
    pub(super) fn heard(&mut self, kind: EventKind, device: u8, size: u64, told: [u64; 2]) -> [u64; 2] {
        let place = place(kind, device);
        let aux0 = add_delta(self.aux0[place].wrapping_add(growth(kind, size)), told[0]);
        let aux1 = add_delta(self.aux1[place], told[1]);
        (self.aux0[place], self.aux1[place]) = (aux0, aux1);
        [aux0, aux1]
    }
}

/// A table that was never on the stack.
#[allow(clippy::unnecessary_box_returns, reason = "that is what it is for")]
pub(super) fn zeros<T: Copy + Default, const N: usize>() -> Box<[T; N]> {
    let table = vec![T::default(); N].into_boxed_slice();
    table.try_into().unwrap_or_else(|_| unreachable!("it has this length"))
}

/// Where its numbers are kept: those of PyTorch's blocks are their device's.
#[inline]
fn place(kind: EventKind, device: u8) -> usize {
    if is_block(kind) { 256 + usize::from(device) } else { usize::from(kind.0) }
}

/// By how much it changes what is allocated.
#[inline]
fn growth(kind: EventKind, size: u64) -> u64 {
    match kind {
        EventKind::BLOCK_ALLOC => size,
        EventKind::BLOCK_FREE => size.wrapping_neg(),
        _ => 0,
    }
}

/// True for PyTorch's blocks.
#[inline]
pub(super) fn is_block(kind: EventKind) -> bool {
    matches!(kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE)
}
