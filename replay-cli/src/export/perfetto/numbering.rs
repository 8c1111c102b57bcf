//! Numbers for interned values.

use std::collections::HashMap;
use std::hash::Hash;

/// Numbers of equal values, from 1.
#[derive(Debug)]
pub(super) struct Numbering<T> {
    numbers: HashMap<T, u64>,
}

impl<T> Default for Numbering<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new() }
    }
}

impl<T: Hash + Eq> Numbering<T> {
    /// The number of a value, and whether it is new.
    pub(super) fn number(&mut self, value: T) -> (u64, bool) {
        let next = self.numbers.len() as u64 + 1;
        let number = *self.numbers.entry(value).or_insert(next);
        (number, number == next)
    }

    /// How many values have a number.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}
