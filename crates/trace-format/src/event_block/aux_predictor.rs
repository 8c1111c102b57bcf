//! Prediction of `aux0` and `aux1`, for the encoder and the decoder.
//!
//! The two numbers are kept in two tables, not as pairs. A pair that is stored in halves and loaded
//! as a whole defeats store-to-load forwarding, and the decoder does this for every row.

use super::{boxed_zeros, is_torch_block};
use crate::event::EventKind;
use crate::wire::add_delta;

/// One slot for each kind, then one for each device.
const SLOTS: usize = 512;

/// The last values by slot.
pub(super) struct AuxPredictor {
    aux0: Box<[u64; SLOTS]>,
    aux1: Box<[u64; SLOTS]>,
}

impl AuxPredictor {
    pub(super) fn new() -> Self {
        Self { aux0: boxed_zeros(), aux1: boxed_zeros() }
    }

    #[inline]
    pub(super) fn predict(&self, kind: EventKind, device: u8, size: u64) -> [u64; 2] {
        let slot = slot(kind, device);
        [self.aux0[slot].wrapping_add(growth(kind, size)), self.aux1[slot]]
    }

    /// Takes in the values of a row.
    #[inline]
    pub(super) fn update(&mut self, kind: EventKind, device: u8, aux: [u64; 2]) {
        let slot = slot(kind, device);
        (self.aux0[slot], self.aux1[slot]) = (aux[0], aux[1]);
    }

    /// Decodes the values of a row from their deltas, and takes them in.
    #[inline]
    pub(super) fn decode(&mut self, kind: EventKind, device: u8, size: u64, deltas: [u64; 2]) -> [u64; 2] {
        let slot = slot(kind, device);
        let aux0 = add_delta(self.aux0[slot].wrapping_add(growth(kind, size)), deltas[0]);
        let aux1 = add_delta(self.aux1[slot], deltas[1]);
        (self.aux0[slot], self.aux1[slot]) = (aux0, aux1);
        [aux0, aux1]
    }
}

/// PyTorch's blocks share a slot by device.
#[inline]
fn slot(kind: EventKind, device: u8) -> usize {
    if is_torch_block(kind) { 256 + usize::from(device) } else { usize::from(kind.0) }
}

/// Change of allocated bytes, which wraps.
#[inline]
fn growth(kind: EventKind, size: u64) -> u64 {
    match kind {
        EventKind::BLOCK_ALLOC => size,
        EventKind::BLOCK_FREE => size.wrapping_neg(),
        _ => 0,
    }
}
