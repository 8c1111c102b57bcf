//! Bytes handed out, per device.
//!
//! Constraint: tensors are made and freed on any thread. Consequence: one atomic a device; devices beyond the table share
//! its last entry, and 64 in one process is more than any machine has.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

const DEVICES: usize = 64;

#[derive(Debug)]
pub(crate) struct Totals([Total; DEVICES]);

#[derive(Debug)]
pub(crate) struct Total(AtomicU64);

pub(crate) static TOTALS: Totals = Totals([const { Total(AtomicU64::new(0)) }; DEVICES]);

impl Totals {
    pub(crate) fn device(&self, ordinal: c_int) -> &Total {
        &self.0[usize::try_from(ordinal).unwrap_or(0).min(DEVICES - 1)]
    }
}

impl Total {
    pub(crate) fn live(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The total after adding.
    pub(crate) fn add(&self, bytes: u64) -> u64 {
        self.0.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// The total after subtracting.
    pub(crate) fn subtract(&self, bytes: u64) -> u64 {
        self.0.fetch_sub(bytes, Ordering::Relaxed).saturating_sub(bytes)
    }
}
