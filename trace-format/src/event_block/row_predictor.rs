//! What both sides know of a row before they see it.
//!
//! Constraint: a prediction that writer and reader make differently is a wrong number in a report. Consequence: one type makes
//! them for both. The program whose thread makes an encoder may have a small stack, so tables are not in it.

use super::expected_aux::{ExpectedAux, zeros};
use super::{Role, role};
use crate::defs::NodeId;
use crate::event::EventKind;
use crate::wire::add_delta;

/// Slots for what followed on a stack: a loop has fewer lines.
const SLOTS: usize = 4096;

/// What followed on each stack the last time.
pub(super) struct Followers {
    next: Box<[u32; SLOTS]>,
    last: u32,
}

impl Followers {
    fn new() -> Self {
        Self { next: zeros(), last: 0 }
    }

    /// The slot of what comes now.
    #[inline]
    fn slot(&mut self) -> &mut u32 {
        &mut self.next[self.last as usize % SLOTS]
    }

    /// How a stack is told.
    #[inline]
    pub(super) fn tell(&mut self, id: u32) -> u64 {
        let expected = self.slot();
        let told = if *expected == id { 0 } else { u64::from(id) + 1 };
        *expected = id;
        self.last = id;
        told
    }

    /// The stacks that are told so; false where one of them is none.
    #[inline]
    #[must_use]
    pub(super) fn hear(&mut self, told: &[u64], ids: &mut [NodeId]) -> bool {
        let mut high_bits = 0;
        for (id, told) in ids.iter_mut().zip(told) {
            let expected = self.slot();
            let heard = told.checked_sub(1).unwrap_or(u64::from(*expected));
            high_bits |= heard >> 32;
            *expected = heard as u32;
            self.last = heard as u32;
            *id = NodeId(heard as u32);
        }
        high_bits == 0
    }

    /// The stack that is the same again and again, for as long as nothing else is told.
    #[inline]
    pub(super) fn staying(&self) -> Option<NodeId> {
        let next = self.next[self.last as usize % SLOTS];
        (next == self.last).then_some(NodeId(next))
    }
}

/// The state before a row.
pub(super) struct Expected {
    pub(super) seq: u64,
    pub(super) units: u64,
    pub(super) stream: u64,
    pub(super) pool: u64,
    pub(super) python: Followers,
    pub(super) native: Followers,
    /// Of what allocates or gives back.
    first_addr: Option<u64>,
    addr_by_kind: Box<[u64; 256]>,
    pub(super) aux: ExpectedAux,
}

impl Expected {
    pub(super) fn new() -> Self {
        Self {
            seq: u64::MAX,
            units: 0,
            stream: 0,
            pool: 0,
            python: Followers::new(),
            native: Followers::new(),
            first_addr: None,
            addr_by_kind: zeros(),
            aux: ExpectedAux::new(),
        }
    }

    /// An address that is told.
    #[inline]
    pub(super) fn addr(&self, kind: EventKind) -> u64 {
        match role(kind) {
            Role::Other => self.addr_by_kind[usize::from(kind.0)],
            _ => self.first_addr.unwrap_or(0),
        }
    }

    /// What it was.
    #[inline]
    pub(super) fn learn_addr(&mut self, kind: EventKind, addr: u64) {
        match role(kind) {
            Role::Other => self.addr_by_kind[usize::from(kind.0)] = addr,
            _ => self.first_addr = self.first_addr.or(Some(addr)),
        }
    }

    /// An address, by how much it differs from what was expected.
    #[inline]
    pub(super) fn heard_addr(&mut self, kind: EventKind, role: Role, told: u64) -> u64 {
        if role == Role::Other {
            let last = &mut self.addr_by_kind[usize::from(kind.0)];
            *last = add_delta(*last, told);
            return *last;
        }
        let mut addr = [told];
        self.heard_addrs(&mut addr);
        addr[0]
    }

    /// The same of several that allocate or give back, in the place of what is told.
    #[inline]
    pub(super) fn heard_addrs(&mut self, told: &mut [u64]) {
        let mut after = told;
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
}
