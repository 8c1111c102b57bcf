//! Bytes handed out per device in the uncached mode.
//!
//! Tensors are created and freed on any thread, so each device has one atomic counter. Ordinals
//! beyond the table share its last entry; the table has room for 64 devices.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

const DEVICES: usize = 64;

#[derive(Debug)]
pub(crate) struct LiveByteCounters([LiveByteCounter; DEVICES]);

#[derive(Debug)]
pub(crate) struct LiveByteCounter(AtomicU64);

pub(crate) static LIVE_BYTES: LiveByteCounters =
    LiveByteCounters([const { LiveByteCounter(AtomicU64::new(0)) }; DEVICES]);

impl LiveByteCounters {
    pub(crate) fn device(&self, ordinal: c_int) -> &LiveByteCounter {
        &self.0[usize::try_from(ordinal).unwrap_or(0).min(DEVICES - 1)]
    }
}

impl LiveByteCounter {
    pub(crate) fn live(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds `bytes` and returns the new total.
    pub(crate) fn add(&self, bytes: u64) -> u64 {
        self.0.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Subtracts `bytes` and returns the new total.
    pub(crate) fn subtract(&self, bytes: u64) -> u64 {
        self.0.fetch_sub(bytes, Ordering::Relaxed).saturating_sub(bytes)
    }
}
