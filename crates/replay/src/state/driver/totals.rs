//! Allocated driver memory by place, in bytes.

use std::collections::BTreeMap;

use gpumemtrace_format::Event;

use super::{AllocationKey, DriverChange, DriverState, MemoryPlace};
use crate::util::ids::StackId;

use crate::util::seeded_map::SeededMap;

/// Allocated bytes by place, the sum of all changes so far.
#[derive(Debug, Default)]
pub(crate) struct PlaceTotals {
    live: SeededMap<AllocationKey, u64>,
    bytes: BTreeMap<MemoryPlace, u64>,
}

impl PlaceTotals {
    pub(crate) fn apply(&mut self, change: &DriverChange) {
        match *change {
            DriverChange::Alloc { key, place, bytes, .. } => {
                let lost = self.live.insert(key, bytes).unwrap_or(0);
                let total = self.bytes.entry(place).or_default();
                *total = total.saturating_add(bytes).saturating_sub(lost);
            }
            DriverChange::Free { key, place } => {
                let bytes = self.live.remove(&key).unwrap_or(0);
                let total = self.bytes.entry(place).or_default();
                *total = total.saturating_sub(bytes);
            }
        }
    }

    /// Allocated bytes in `place`.
    pub(crate) fn bytes_in(&self, place: MemoryPlace) -> u64 {
        self.bytes.get(&place).copied().unwrap_or(0)
    }

    /// Places that had memory at any time, with their present bytes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (MemoryPlace, u64)> {
        self.bytes.iter().map(|(place, bytes)| (*place, *bytes))
    }
}

/// Allocated driver memory by place, updated event by event.
#[derive(Debug, Default)]
pub struct MemoryByPlace {
    driver: DriverState,
    totals: PlaceTotals,
}

impl MemoryByPlace {
    /// Applies the next event of a trace.
    pub fn on_event(&mut self, event: &Event) {
        self.driver.on_driver_call(event, StackId::default());
        for change in &self.driver.changes {
            self.totals.apply(change);
        }
    }

    /// Places that had memory at any time, with their present bytes.
    pub fn iter(&self) -> impl Iterator<Item = (MemoryPlace, u64)> {
        self.totals.iter()
    }
}
