//! The memo of a pickle: values that later opcodes refer to.
//!
//! Every event and every list of frames has an entry that is hardly ever used, so an entry is four
//! bytes: a kind and a number.

use std::collections::BTreeMap;

use crate::values::{ContainerId, TextId, TorchFrame, TorchStack, Value};

/// Entries of a pickle are numbered in sequence; a number beyond this gap goes to a map.
const MAX_GAP: usize = 8;
const NUMBER_BITS: u32 = 28;

#[derive(Debug, Default)]
pub(super) struct PickleMemo {
    entries: Vec<u32>,
    /// Entries far beyond the others.
    distant: BTreeMap<u32, u32>,
    /// Values without a kind of their own.
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

impl PickleMemo {
    pub(super) fn next(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Sets an entry. False if it cannot be stored.
    pub(super) fn set(&mut self, at: u32, value: Value) -> bool {
        let Some(packed) = self.pack(value) else { return false };
        let index = at as usize;
        if index >= self.entries.len() {
            if index - self.entries.len() > MAX_GAP {
                self.distant.insert(at, packed);
                return true;
            }
            self.entries.resize(index + 1, UNSET);
        }
        self.entries[index] = packed;
        true
    }

    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<Value> {
        let packed = match self.entries.get(at as usize) {
            Some(packed) if *packed != UNSET => *packed,
            _ => *self.distant.get(&at)?,
        };
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
            _ => *self.others.get(number as usize)?,
        })
    }

    fn pack(&mut self, value: Value) -> Option<u32> {
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
            other => {
                self.others.push(other);
                (OTHER, self.others.len() as u32 - 1)
            }
        };
        (number >> NUMBER_BITS == 0).then_some(kind << NUMBER_BITS | number)
    }
}
