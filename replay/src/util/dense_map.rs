//! A map from small ids that is an array where ids are dense, as a recorder makes them, and a hash map where they are not,
//! as a hostile file may make them: speed for the one, bounded memory for the other.

use crate::util::seeded_map::SeededMap;

const DENSE_IDS: u32 = 1 << 22;

/// Values by 32-bit id.
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
    /// The value, if there is one.
    pub(crate) fn get(&self, id: u32) -> Option<T> {
        self.at(id).copied()
    }

    /// Where it lies.
    #[inline]
    pub(crate) fn at(&self, id: u32) -> Option<&T> {
        match self.dense.get(id as usize) {
            Some(value) => value.as_ref(),
            None if id < DENSE_IDS => None,
            None => self.sparse.get(&id),
        }
    }

    /// Sets the value.
    pub(crate) fn insert(&mut self, id: u32, value: T) {
        if id >= DENSE_IDS {
            self.sparse.insert(id, value);
            return;
        }
        let at = id as usize;
        if at >= self.dense.len() {
            self.dense.resize(at + 1, None);
        }
        self.dense[at] = Some(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_any_size_are_kept_apart() {
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
