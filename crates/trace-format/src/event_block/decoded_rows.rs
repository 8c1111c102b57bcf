//! What the next row of a block may refer to.
//!
//! Decoded events are passed on in chunks, so the decoder keeps what later rows need of them.

use super::row_predictor::RowPredictor;
use crate::event::{Detail, Event};
use crate::wire::WireError;

/// What the next row may refer to.
#[derive(Default)]
pub(super) struct DecodedRows {
    pub(super) last: RowPredictor,
    pub(super) shift: u8,
    /// The allocations of the block, which frees name.
    allocations: Vec<NamedAllocation>,
    /// Addresses of the frees that named an allocation.
    freed_addrs: Vec<u64>,
}

/// What a free that names an allocation does not repeat.
#[derive(Clone, Copy)]
pub(super) struct NamedAllocation {
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) device: u8,
    pub(super) detail: Option<Detail>,
}

impl NamedAllocation {
    #[inline]
    pub(super) fn copy_to(self, event: &mut Event) {
        (event.addr, event.size) = (self.addr, self.size);
        (event.device, event.detail) = (self.device, self.detail);
    }
}

impl DecodedRows {
    /// Begins a block with times in units of 2^`shift` ns.
    pub(super) fn restart(&mut self, shift: u8) {
        (self.last, self.shift) = (RowPredictor::new(), shift);
        self.allocations.clear();
        self.freed_addrs.clear();
    }

    /// Lets later frees name an allocation.
    #[inline]
    pub(super) fn add_allocation(&mut self, allocation: NamedAllocation) {
        self.allocations.push(allocation);
    }

    /// Sets what a free does not repeat of the allocation that its AGE names.
    #[inline]
    pub(super) fn copy_named(
        &mut self,
        event: &mut Event,
        age: u64,
        has_detail: bool,
    ) -> Result<(), WireError> {
        let number = usize::try_from(age).ok().and_then(|age| self.allocations.len().checked_sub(age));
        let made = number.and_then(|number| self.allocations.get(number)).ok_or(WireError::Range)?;
        if made.detail.is_some() != has_detail {
            return Err(WireError::Range);
        }
        made.copy_to(event);
        self.freed_addrs.push(made.addr);
        Ok(())
    }

    /// The address that a REUSE names.
    #[inline]
    pub(super) fn reused_addr(&self, reuse: u64) -> Result<u64, WireError> {
        let number = usize::try_from(reuse).ok().and_then(|reuse| self.freed_addrs.len().checked_sub(reuse));
        number.and_then(|number| self.freed_addrs.get(number)).copied().ok_or(WireError::Range)
    }
}
