//! Atomics that log each store, with its offset in the ring file.

use std::cell::{Cell, RefCell};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use gpumemtrace_format::ring::RingRecord;

/// One change to the files of a recording.
#[derive(Clone, Debug)]
pub(crate) enum KillStep {
    /// A store of a value at an offset in the ring file.
    Store(usize, u64),
    /// Records that are appended to the trace.
    Append(Vec<RingRecord>),
}

thread_local! {
    /// All changes so far, in program order.
    pub(crate) static LOG: RefCell<Vec<KillStep>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
pub(crate) struct AtomicU64 {
    value: Cell<u64>,
    offset: usize,
}

impl AtomicU64 {
    /// A word at this offset in the ring file.
    pub(crate) fn at(offset: usize) -> Self {
        Self { value: Cell::new(0), offset }
    }

    pub(crate) fn load(&self, _: Ordering) -> u64 {
        self.value.get()
    }

    pub(crate) fn store(&self, value: u64, _: Ordering) {
        self.value.set(value);
        LOG.with_borrow_mut(|log| log.push(KillStep::Store(self.offset, value)));
    }
}

pub(crate) fn light_fence() {}

pub(crate) fn heavy_fence() {}
