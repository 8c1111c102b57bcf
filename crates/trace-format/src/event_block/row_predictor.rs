//! Predictions that the encoder and the decoder share: if they differed, a report would be wrong.

use super::aux_predictor::AuxPredictor;
use super::{Pairing, boxed_zeros, pairing};
use crate::event::EventKind;
use crate::ids::NodeId;
use crate::wire::add_delta;

/// More than a loop has call sites.
const STACK_SLOTS: usize = 4096;

/// Predicts a stack from the stack before it: what followed the last time.
pub(super) struct StackPredictor {
    next: Box<[u32; STACK_SLOTS]>,
    last: u32,
}

impl StackPredictor {
    fn new() -> Self {
        Self { next: boxed_zeros(), last: 0 }
    }

    /// The prediction for the next row.
    #[inline]
    fn slot(&mut self) -> &mut u32 {
        &mut self.next[self.last as usize % STACK_SLOTS]
    }

    /// The number of a row: 0 if the prediction is right, else id + 1.
    #[inline]
    pub(super) fn encode(&mut self, id: u32) -> u64 {
        let expected = self.slot();
        let number = if *expected == id { 0 } else { u64::from(id) + 1 };
        *expected = id;
        self.last = id;
        number
    }

    /// Decodes the numbers of some rows; false if one exceeds the range of a node id.
    #[inline]
    #[must_use]
    pub(super) fn decode(&mut self, numbers: &[u64], ids: &mut [NodeId]) -> bool {
        let mut high_bits = 0;
        for (id, number) in ids.iter_mut().zip(numbers) {
            let expected = self.slot();
            let decoded = number.checked_sub(1).unwrap_or(u64::from(*expected));
            high_bits |= decoded >> 32;
            *expected = decoded as u32;
            self.last = decoded as u32;
            *id = NodeId(decoded as u32);
        }
        high_bits == 0
    }

    /// The stack that every 0 that follows stands for; `None` if a 0 changes the stack.
    #[inline]
    pub(super) fn repeating_stack(&self) -> Option<NodeId> {
        let next = self.next[self.last as usize % STACK_SLOTS];
        (next == self.last).then_some(NodeId(next))
    }
}

/// The state before a row.
pub(super) struct RowPredictor {
    pub(super) seq: u64,
    pub(super) units: u64,
    pub(super) stream: u64,
    pub(super) pool: u64,
    pub(super) python: StackPredictor,
    pub(super) native: StackPredictor,
    /// Of allocations and frees.
    first_addr: Option<u64>,
    addr_by_kind: Box<[u64; 256]>,
    pub(super) aux: AuxPredictor,
}

impl Default for RowPredictor {
    fn default() -> Self {
        Self::new()
    }
}

impl RowPredictor {
    pub(super) fn new() -> Self {
        Self {
            seq: u64::MAX,
            units: 0,
            stream: 0,
            pool: 0,
            python: StackPredictor::new(),
            native: StackPredictor::new(),
            first_addr: None,
            addr_by_kind: boxed_zeros(),
            aux: AuxPredictor::new(),
        }
    }

    #[inline]
    pub(super) fn predict_addr(&self, kind: EventKind) -> u64 {
        match pairing(kind) {
            Pairing::Neither => self.addr_by_kind[usize::from(kind.0)],
            _ => self.first_addr.unwrap_or(0),
        }
    }

    /// Takes in an address.
    #[inline]
    pub(super) fn update_addr(&mut self, kind: EventKind, addr: u64) {
        match pairing(kind) {
            Pairing::Neither => self.addr_by_kind[usize::from(kind.0)] = addr,
            _ => self.first_addr = self.first_addr.or(Some(addr)),
        }
    }

    /// Decodes an address from its delta, and takes it in.
    #[inline]
    pub(super) fn decode_addr(&mut self, kind: EventKind, pairing: Pairing, delta: u64) -> u64 {
        if pairing == Pairing::Neither {
            let last = &mut self.addr_by_kind[usize::from(kind.0)];
            *last = add_delta(*last, delta);
            return *last;
        }
        let mut addr = [delta];
        self.decode_addrs(&mut addr);
        addr[0]
    }

    /// Decodes the addresses of several allocations and frees in place.
    #[inline]
    pub(super) fn decode_addrs(&mut self, deltas: &mut [u64]) {
        let mut after = deltas;
        if self.first_addr.is_none()
            && let [first, others @ ..] = after
        {
            *first = add_delta(0, *first);
            self.first_addr = Some(*first);
            after = others;
        }
        let first = self.first_addr.unwrap_or(0);
        for addr in after {
            *addr = add_delta(first, *addr);
        }
    }
}
