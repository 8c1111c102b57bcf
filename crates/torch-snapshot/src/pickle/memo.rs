//! The memo of a pickle: values that later opcodes refer to.
//!
//! Every event and every list of frames has an entry that is hardly ever used, so an entry is four
//! bytes: a kind and a number.

use std::collections::BTreeMap;

use crate::error::SnapshotError;
use crate::values::{ContainerId, TextId, TorchFrame, TorchStack, Value};

/// Entries of a pickle are numbered in sequence; a number beyond this gap goes to a map.
const MAX_GAP: usize = 8;
const NUMBER_BITS: u32 = 28;
/// Bits of each half of a pool with a kind of its own. Every event of newer versions has one.
const POOL_BITS: u32 = NUMBER_BITS / 2;
const MAX_HALF: u64 = (1 << POOL_BITS) - 1;
/// Entries that every pickle may have.
const FREE_ENTRIES: u64 = 1 << 20;
/// Bytes of the file for each further entry. The snapshots in `tests/golden` have 18 and more.
const BYTES_PER_ENTRY: u64 = 12;
/// Most values without a kind of their own. Python's pickles refer to no numbers.
const MAX_OTHERS: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct PickleMemo {
    entries: Vec<u32>,
    /// Entries far beyond the others.
    distant: BTreeMap<u32, u32>,
    /// Values without a kind of their own. An entry that is set again keeps its place.
    others: Vec<Value>,
}

const UNSET: u32 = 0;
const NOTHING: u32 = 1;
const EMPTY: u32 = 2;
const TEXT: u32 = 3;
const FRAME: u32 = 4;
const STACK: u32 = 5;
const EVENT: u32 = 6;
const ANNOTATION: u32 = 7;
const BLOCK: u32 = 8;
const SEGMENT: u32 = 9;
const CONTAINER: u32 = 10;
const OTHER: u32 = 11;
const TEXT_LIST: u32 = 12;
const RELEASED: u32 = 13;
const POOL: u32 = 14;

impl PickleMemo {
    pub(super) fn next(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Sets an entry, after reading `bytes_read` bytes of the file.
    pub(super) fn set(&mut self, at: u32, value: Value, bytes_read: u64) -> Result<(), SnapshotError> {
        let limit = FREE_ENTRIES + bytes_read / BYTES_PER_ENTRY;
        let index = at as usize;
        let in_sequence = self.entries.len().max(index.min(self.entries.len() + MAX_GAP) + 1);
        if (in_sequence + self.distant.len()) as u64 > limit {
            return Err(SnapshotError::TooLarge { what: "shared values for its size", limit });
        }
        let packed = self.pack(value, self.packed(at));
        let packed =
            packed.ok_or(SnapshotError::TooLarge { what: "shared numbers", limit: MAX_OTHERS as u64 })?;
        if index >= self.entries.len() {
            if index - self.entries.len() > MAX_GAP {
                self.distant.insert(at, packed);
                return Ok(());
            }
            self.entries.resize(index + 1, UNSET);
        }
        self.entries[index] = packed;
        Ok(())
    }

    /// Replaces a container in the entry that was set for it.
    pub(super) fn replace(&mut self, at: u32, container: ContainerId, value: Value) {
        let before = self.packed(at);
        // The entry may be that of another value by now.
        if before != Some(CONTAINER << NUMBER_BITS | container.0) {
            return;
        }
        let Some(packed) = self.pack(value, before) else { return };
        match self.entries.get_mut(at as usize) {
            Some(entry) if *entry != UNSET => *entry = packed,
            _ => drop(self.distant.insert(at, packed)),
        }
    }

    #[inline]
    fn packed(&self, at: u32) -> Option<u32> {
        match self.entries.get(at as usize) {
            Some(packed) if *packed != UNSET => Some(*packed),
            _ => self.distant.get(&at).copied(),
        }
    }

    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<Value> {
        let packed = self.packed(at)?;
        let number = packed & ((1 << NUMBER_BITS) - 1);
        Some(match packed >> NUMBER_BITS {
            NOTHING => Value::Nothing,
            EMPTY => Value::Empty,
            TEXT => Value::Text(TextId(number)),
            FRAME => Value::Frame(TorchFrame(number)),
            STACK => Value::Stack(TorchStack(number)),
            EVENT => Value::Event(number),
            ANNOTATION => Value::Annotation(number),
            BLOCK => Value::Block(number),
            SEGMENT => Value::Segment(number),
            CONTAINER => Value::Container(ContainerId(number)),
            TEXT_LIST => Value::TextList(number),
            RELEASED => Value::Released,
            POOL => Value::Pool(u64::from(number >> POOL_BITS) << 32 | u64::from(number) & MAX_HALF),
            _ => *self.others.get(number as usize)?,
        })
    }

    /// The entry for a value in place of `before`; `None` if there are too many.
    fn pack(&mut self, value: Value, before: Option<u32>) -> Option<u32> {
        let (kind, number) = match value {
            Value::Nothing => (NOTHING, 0),
            Value::Empty => (EMPTY, 0),
            Value::Text(text) => (TEXT, text.0),
            Value::Frame(frame) => (FRAME, frame.0),
            Value::Stack(stack) => (STACK, stack.0),
            Value::Event(at) => (EVENT, at),
            Value::Annotation(at) => (ANNOTATION, at),
            Value::Block(at) => (BLOCK, at),
            Value::Segment(at) => (SEGMENT, at),
            Value::Container(id) => (CONTAINER, id.0),
            Value::TextList(at) => (TEXT_LIST, at),
            Value::Released => (RELEASED, 0),
            Value::Pool(pool) if pool >> 32 <= MAX_HALF && pool & 0xffff_ffff <= MAX_HALF => {
                (POOL, (pool >> 32 << POOL_BITS | pool & MAX_HALF) as u32)
            }
            other => {
                if let Some(before) = before.filter(|before| before >> NUMBER_BITS == OTHER) {
                    self.others[(before & ((1 << NUMBER_BITS) - 1)) as usize] = other;
                    return Some(before);
                }
                if self.others.len() == MAX_OTHERS {
                    return None;
                }
                self.others.push(other);
                (OTHER, self.others.len() as u32 - 1)
            }
        };
        (number >> NUMBER_BITS == 0).then_some(kind << NUMBER_BITS | number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back_and_numbers_set_again_keep_their_place() {
        let mut memo = PickleMemo::default();
        let pools = [0, 1, 7 << 32, MAX_HALF << 32 | MAX_HALF, 1 << POOL_BITS, u64::MAX].map(Value::Pool);
        let others = [Value::Int(-1), Value::TextList(3), Value::Released, Value::Container(ContainerId(5))];
        for (at, value) in (0..).zip(pools.into_iter().chain(others)) {
            memo.set(at, value, 0).unwrap();
            assert_eq!(memo.get(at), Some(value));
        }
        let before = memo.others.len();
        for number in 0..1000 {
            memo.set(6, Value::Int(number), 0).unwrap();
        }
        assert_eq!((memo.others.len(), memo.get(6)), (before, Some(Value::Int(999))));
    }

    #[test]
    fn entry_of_another_value_is_not_replaced() {
        let mut memo = PickleMemo::default();
        memo.set(0, Value::Container(ContainerId(5)), 0).unwrap();
        memo.set(0, Value::Event(1), 0).unwrap();
        memo.replace(0, ContainerId(5), Value::Released);
        assert_eq!(memo.get(0), Some(Value::Event(1)));
    }
}
