//! What both sides know of a row before they see it.
//!
//! Constraint: a prediction that writer and reader make differently is a wrong number in a report. Consequence: one type makes
//! them for both.

use crate::event::{Detail, Event, EventKind};
use crate::expected_aux::ExpectedAux;

/// Slots for what was asked for at an address: a block is freed where it was allocated.
const SLOTS: usize = 4096;

/// The state before a row.
pub(super) struct Predictor {
    pub(super) seq: u64,
    pub(super) time_ns: u64,
    pub(super) addr: u64,
    pub(super) detail: Detail,
    aux: ExpectedAux,
    requested_by_slot: Vec<u64>,
}

impl Predictor {
    pub(super) fn new() -> Self {
        Self {
            seq: u64::MAX,
            time_ns: 0,
            addr: 0,
            detail: Detail::default(),
            aux: ExpectedAux::new(),
            requested_by_slot: vec![0; SLOTS],
        }
    }

    fn slot(addr: u64) -> usize {
        (addr >> 9) as usize % SLOTS
    }

    /// What was asked for.
    #[inline]
    pub(super) fn requested(&self, addr: u64, size: u64) -> u64 {
        match self.requested_by_slot[Self::slot(addr)] {
            0 => size,
            requested => requested,
        }
    }

    /// The two numbers that go with a kind.
    #[inline]
    pub(super) fn aux(&self, kind: EventKind, device: u8, size: u64) -> [u64; 2] {
        self.aux.get(kind, device, size)
    }

    /// What they were.
    #[inline]
    pub(super) fn learn_aux(&mut self, kind: EventKind, device: u8, aux: [u64; 2]) {
        self.aux.learn(kind, device, aux);
    }

    /// What was asked for there.
    #[inline]
    pub(super) fn learn_requested(&mut self, addr: u64, requested_bytes: u64) {
        self.requested_by_slot[Self::slot(addr)] = requested_bytes;
    }

    /// Everything of a row.
    pub(super) fn learn(&mut self, event: &Event) {
        self.seq = event.seq;
        self.time_ns = event.time_ns;
        self.addr = event.addr;
        if let Some(detail) = event.detail {
            self.detail = detail;
            self.learn_requested(event.addr, detail.requested_bytes);
        }
        self.learn_aux(event.kind, event.device, event.aux);
    }
}
