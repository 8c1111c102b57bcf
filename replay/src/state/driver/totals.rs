//! Bytes held, by place: the sum of all changes so far.

use std::collections::BTreeMap;

use super::{AllocationKey, Change, Place};

use crate::util::seeded_map::KeyedMap;

/// The sums.
#[derive(Debug, Default)]
pub struct Totals {
    live: KeyedMap<AllocationKey, u64>,
    bytes: BTreeMap<Place, u64>,
}

impl Totals {
    /// Takes a change.
    pub fn apply(&mut self, change: &Change) {
        match *change {
            Change::Alloc { key, place, bytes, .. } => {
                let old = self.live.insert(key, bytes).unwrap_or(0);
                let held = self.bytes.entry(place).or_default();
                *held = held.saturating_add(bytes).saturating_sub(old);
            }
            Change::Free { key, place } => {
                let bytes = self.live.remove(&key).unwrap_or(0);
                let held = self.bytes.entry(place).or_default();
                *held = held.saturating_sub(bytes);
            }
        }
    }

    /// Bytes in a place.
    pub fn of(&self, place: Place) -> u64 {
        self.bytes.get(&place).copied().unwrap_or(0)
    }

    /// Every place that ever held any.
    pub fn iter(&self) -> impl Iterator<Item = (Place, u64)> {
        self.bytes.iter().map(|(place, bytes)| (*place, *bytes))
    }
}
