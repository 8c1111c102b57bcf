//! Lists and dictionaries that are being read, or that are no known part of a snapshot.

use super::{TextId, TorchStack, Value};
use crate::error::SnapshotError;

/// Most values in all containers together; each takes up to 128 bytes.
const MAX_VALUES: u64 = 1 << 21;

/// A list or dictionary of [`Containers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ContainerId(pub(crate) u32);

/// What a container holds.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ContainerBody {
    /// Its number may be given out again.
    Free,
    List(Vec<Value>),
    /// A list of frames, so far.
    Frames(TorchStack),
    Dict(Vec<(TextId, Value)>),
    /// Recognized, and referred to from several places.
    Replaced(Value),
}

#[derive(Debug)]
struct Slot {
    body: ContainerBody,
    /// More than one value may refer to it.
    is_shared: bool,
    /// A list that was complete once, and was no known part.
    is_unknown: bool,
    /// The entry of the pickle's memo that refers to it.
    memo: Option<u32>,
}

/// Containers by number. Numbers are used again.
#[derive(Debug, Default)]
pub(crate) struct Containers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    values: u64,
}

impl Containers {
    pub(crate) fn add(&mut self, body: ContainerBody) -> Result<ContainerId, SnapshotError> {
        let values = match &body {
            ContainerBody::List(items) => items.len(),
            ContainerBody::Dict(pairs) => pairs.len(),
            ContainerBody::Free | ContainerBody::Frames(_) | ContainerBody::Replaced(_) => 0,
        };
        self.charge(values + 1)?;
        let slot = Slot { body, is_shared: false, is_unknown: false, memo: None };
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = slot;
            return Ok(ContainerId(id));
        }
        self.slots.push(slot);
        Ok(ContainerId(self.slots.len() as u32 - 1))
    }

    /// Counts values that a container is about to hold.
    pub(crate) fn charge(&mut self, values: usize) -> Result<(), SnapshotError> {
        self.values += values as u64;
        if self.values > MAX_VALUES {
            return Err(SnapshotError::TooLarge {
                what: "values outside of events and stacks",
                limit: MAX_VALUES,
            });
        }
        Ok(())
    }

    /// Takes back a [`Self::charge`] of as many values.
    pub(crate) fn discharge_values(&mut self, values: usize) {
        self.values = self.values.saturating_sub(values as u64);
    }

    pub(crate) fn body(&self, id: ContainerId) -> &ContainerBody {
        &self.slots[id.0 as usize].body
    }

    pub(crate) fn body_mut(&mut self, id: ContainerId) -> &mut ContainerBody {
        &mut self.slots[id.0 as usize].body
    }

    /// Takes the items of a list. What still refers to it gets [`Value::Released`].
    pub(crate) fn take_items(&mut self, id: ContainerId) -> Vec<Value> {
        let ContainerBody::List(items) = self.body_mut(id) else { return Vec::new() };
        let items = std::mem::take(items);
        self.discharge_values(items.len());
        let slot = &mut self.slots[id.0 as usize];
        slot.body = ContainerBody::Replaced(Value::Released);
        slot.is_unknown = false;
        items
    }

    /// True if a list was complete before and was no known part. It stays unknown, so that its
    /// values are looked at once.
    pub(crate) fn is_unknown(&self, id: ContainerId) -> bool {
        self.slots[id.0 as usize].is_unknown
    }

    pub(crate) fn set_unknown(&mut self, id: ContainerId) {
        self.slots[id.0 as usize].is_unknown = true;
    }

    /// Notes that another value refers to the container.
    pub(crate) fn share(&mut self, id: ContainerId) {
        self.slots[id.0 as usize].is_shared = true;
    }

    /// Notes the entry of the memo that refers to the container.
    pub(crate) fn set_memo(&mut self, id: ContainerId, entry: u32) {
        let slot = &mut self.slots[id.0 as usize];
        slot.is_shared |= slot.memo.is_some();
        slot.memo = Some(entry);
    }

    /// Replaces a container by a value. Returns the entry of the memo to replace.
    pub(crate) fn replace(&mut self, id: ContainerId, value: Value) -> Option<u32> {
        let memo = self.slots[id.0 as usize].memo;
        if self.slots[id.0 as usize].is_shared {
            self.discharge(id);
            self.slots[id.0 as usize].body = ContainerBody::Replaced(value);
            // Its slot is never free again.
            self.values += 1;
        } else {
            self.remove(id);
        }
        memo
    }

    /// Frees what only `value` refers to. Returns the entries of the memo that refer to
    /// it, and the container of each.
    pub(crate) fn release(&mut self, value: Value) -> Vec<(u32, ContainerId)> {
        let (mut pending, mut entries) = (vec![value], Vec::new());
        while let Some(value) = pending.pop() {
            let Value::Container(id) = value else { continue };
            let slot = &mut self.slots[id.0 as usize];
            if slot.is_shared || slot.body == ContainerBody::Free {
                continue;
            }
            entries.extend(slot.memo.map(|entry| (entry, id)));
            match &mut slot.body {
                ContainerBody::List(items) => pending.extend(items.iter().copied()),
                ContainerBody::Dict(pairs) => pending.extend(pairs.iter().map(|(_, value)| *value)),
                ContainerBody::Free | ContainerBody::Frames(_) | ContainerBody::Replaced(_) => {}
            }
            self.remove(id);
        }
        entries
    }

    fn remove(&mut self, id: ContainerId) {
        self.discharge(id);
        self.slots[id.0 as usize] =
            Slot { body: ContainerBody::Free, is_shared: false, is_unknown: false, memo: None };
        self.free.push(id.0);
    }

    /// Takes back what the values of a container were charged.
    fn discharge(&mut self, id: ContainerId) {
        let values = match &self.slots[id.0 as usize].body {
            ContainerBody::List(items) => items.len() as u64 + 1,
            ContainerBody::Dict(pairs) => pairs.len() as u64 + 1,
            ContainerBody::Frames(_) | ContainerBody::Replaced(_) => 1,
            ContainerBody::Free => 0,
        };
        self.values = self.values.saturating_sub(values);
    }
}
