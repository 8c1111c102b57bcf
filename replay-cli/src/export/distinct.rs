//! Numbers for distinct values, for formats with tables of strings, frames and stacks.

use std::collections::HashMap;
use std::hash::Hash;

/// Distinct values, numbered from 0 in the order of their first use.
#[derive(Debug)]
pub(crate) struct Distinct<T> {
    numbers: HashMap<T, usize>,
    values: Vec<T>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), values: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    /// The number of a value.
    pub(crate) fn number(&mut self, value: T) -> usize {
        let next = self.values.len();
        *self.numbers.entry(value).or_insert_with_key(|value| {
            self.values.push(value.clone());
            next
        })
    }

    /// The number of a value, and true if it is new.
    pub(crate) fn number_if_new(&mut self, value: T) -> (usize, bool) {
        let next = self.values.len();
        let number = self.number(value);
        (number, number == next)
    }

    /// The values by number.
    pub(crate) fn into_values(self) -> Vec<T> {
        self.values
    }
}
