//! A map from 32-bit ids to small values.
//!
//! The recorder numbers ids densely from 1, so ids below [`DENSE_IDS`] index an array. A hostile
//! file may use any id; larger ids go into a hash map, which bounds the array's size.

use crate::util::seeded_map::SeededMap;

/// Ids below this index the array.
const DENSE_IDS: u32 = 1 << 22;

/// A map from 32-bit ids to `Copy` values.
#[derive(Debug)]
pub(crate) struct DenseMap<T> {
    dense: Vec<Option<T>>,
    sparse: SeededMap<u32, T>,
}

impl<T> Default for DenseMap<T> {
    fn default() -> Self {
        Self { dense: Vec::new(), sparse: SeededMap::default() }
    }
}

impl<T: Copy> DenseMap<T> {
    /// A copy of the value of `id`, if it has one.
    pub(crate) fn get(&self, id: u32) -> Option<T> {
        self.get_ref(id).copied()
    }

    /// The value of `id` in place, for callers that read one field of a large value.
    #[inline]
    pub(crate) fn get_ref(&self, id: u32) -> Option<&T> {
        match self.dense.get(id as usize) {
            Some(value) => value.as_ref(),
            None if id < DENSE_IDS => None,
            None => self.sparse.get(&id),
        }
    }

    /// Sets the value of `id`; an earlier one is replaced.
    pub(crate) fn insert(&mut self, id: u32, value: T) {
        if id >= DENSE_IDS {
            self.sparse.insert(id, value);
            return;
        }
        let index = id as usize;
        if index >= self.dense.len() {
            self.dense.resize(index + 1, None);
        }
        self.dense[index] = Some(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_and_sparse_ids_keep_their_own_values() {
        let mut map = DenseMap::default();
        for id in [0, 7, DENSE_IDS - 1, DENSE_IDS, u32::MAX] {
            map.insert(id, id);
        }
        for id in [0, 7, DENSE_IDS - 1, DENSE_IDS, u32::MAX] {
            assert_eq!(map.get(id), Some(id));
        }
        assert_eq!((map.get(8), map.get(u32::MAX - 1)), (None, None));
    }
}
