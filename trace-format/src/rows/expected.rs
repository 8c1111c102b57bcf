//! What both sides know of a row before they see it.
//!
//! Constraint: a prediction that writer and reader make differently is a wrong number in a report. Consequence: one type makes
//! them for both. The program whose thread makes an encoder may have a small stack, so tables are not in it.

use super::{Role, role};
use crate::event::EventKind;

/// Slots for what followed on a stack: a loop has fewer lines.
const SLOTS: usize = 4096;

/// A table that was never on the stack.
#[allow(clippy::unnecessary_box_returns, reason = "that is what it is for")]
fn zeros<T: Copy + Default, const N: usize>() -> Box<[T; N]> {
    let table = vec![T::default(); N].into_boxed_slice();
    table.try_into().unwrap_or_else(|_| unreachable!("it has this length"))
}

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

    /// The stack that is told so; `None` for what is none.
    #[inline]
    pub(super) fn hear(&mut self, told: u64) -> Option<u32> {
        let expected = self.slot();
        if told > 0 {
            *expected = u32::try_from(told - 1).ok()?;
        }
        self.last = *expected;
        Some(self.last)
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
    aux0_by_kind: Box<[u64; 256]>,
    aux1_by_kind: Box<[u64; 256]>,
    allocated_by_device: Box<[u64; 256]>,
    reserved_by_device: Box<[u64; 256]>,
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
            aux0_by_kind: zeros(),
            aux1_by_kind: zeros(),
            allocated_by_device: zeros(),
            reserved_by_device: zeros(),
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

    /// The two numbers that go with a kind.
    #[inline]
    pub(super) fn aux(&self, kind: EventKind, device: u8, size: u64) -> [u64; 2] {
        let (kind_at, device) = (usize::from(kind.0), usize::from(device));
        match kind {
            EventKind::BLOCK_ALLOC => {
                [self.allocated_by_device[device].wrapping_add(size), self.reserved_by_device[device]]
            }
            EventKind::BLOCK_FREE => {
                [self.allocated_by_device[device].wrapping_sub(size), self.reserved_by_device[device]]
            }
            _ => [self.aux0_by_kind[kind_at], self.aux1_by_kind[kind_at]],
        }
    }

    /// What they were.
    #[inline]
    pub(super) fn learn_aux(&mut self, kind: EventKind, device: u8, [aux0, aux1]: [u64; 2]) {
        let (kind_at, device) = (usize::from(kind.0), usize::from(device));
        if matches!(kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE) {
            self.allocated_by_device[device] = aux0;
            self.reserved_by_device[device] = aux1;
        } else {
            self.aux0_by_kind[kind_at] = aux0;
            self.aux1_by_kind[kind_at] = aux1;
        }
    }
}
