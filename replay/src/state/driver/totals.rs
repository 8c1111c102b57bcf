//! Bytes held, by place: the sum of all changes so far.

use std::collections::BTreeMap;

use gpumemtrace_format::Event;

use super::{AllocationKey, DriverChange, DriverState, MemoryPlace};
use crate::callsite::symbols::StackId;

use crate::util::seeded_map::SeededMap;

/// The sums.
#[derive(Debug, Default)]
pub(crate) struct PlaceTotals {
    live: SeededMap<AllocationKey, u64>,
    bytes: BTreeMap<MemoryPlace, u64>,
}

impl PlaceTotals {
    /// Takes a change.
    pub(crate) fn apply(&mut self, change: &DriverChange) {
        match *change {
            DriverChange::Alloc { key, place, bytes, .. } => {
                let old = self.live.insert(key, bytes).unwrap_or(0);
                let held = self.bytes.entry(place).or_default();
                *held = held.saturating_add(bytes).saturating_sub(old);
            }
            DriverChange::Free { key, place } => {
                let bytes = self.live.remove(&key).unwrap_or(0);
                let held = self.bytes.entry(place).or_default();
                *held = held.saturating_sub(bytes);
            }
        }
    }

    /// Bytes in a place.
    pub(crate) fn of(&self, place: MemoryPlace) -> u64 {
        self.bytes.get(&place).copied().unwrap_or(0)
    }

    /// Every place that ever held any.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (MemoryPlace, u64)> {
        self.bytes.iter().map(|(place, bytes)| (*place, *bytes))
    }
}

/// Bytes that driver calls hold in each place, updated event by event.
#[derive(Debug, Default)]
pub struct MemoryByPlace {
    driver: DriverState,
    totals: PlaceTotals,
}

impl MemoryByPlace {
    /// Applies the next event of a trace.
    pub fn on_event(&mut self, event: &Event) {
        self.driver.event(event, StackId::default());
        for change in &self.driver.changes {
            self.totals.apply(change);
        }
    }

    /// Places that hold memory now, with their bytes.
    pub fn iter(&self) -> impl Iterator<Item = (MemoryPlace, u64)> {
        self.totals.iter()
    }
}
