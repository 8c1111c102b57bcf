//! Each distinct list of numbers once.

use std::collections::HashMap;
use std::rc::Rc;

/// Most numbers in all lists of a table together. Each takes four bytes.
pub(super) const MAX_LISTED: usize = 1 << 24;
/// What a list takes besides its numbers, in numbers.
const LIST_COST: usize = 16;

/// Lists by number.
///
/// A full table adds nothing and gives the first list for each new one. The caller checks
/// [`Self::is_full`] before it uses the result, so that the hot path needs no `Result`.
#[derive(Debug, Default)]
pub(super) struct ListTable {
    ids: HashMap<Rc<[u32]>, u32>,
    lists: Vec<Rc<[u32]>>,
    cost: usize,
    pub(super) is_full: bool,
}

impl ListTable {
    pub(super) fn intern(&mut self, list: &[u32]) -> u32 {
        if let Some(known) = self.ids.get(list) {
            return *known;
        }
        self.cost += list.len() + LIST_COST;
        if self.cost > MAX_LISTED {
            self.is_full = true;
            return 0;
        }
        let (list, id) = (Rc::<[u32]>::from(list), self.lists.len() as u32);
        self.lists.push(list.clone());
        self.ids.insert(list, id);
        id
    }

    /// The numbers of a list; none for an unknown id.
    pub(super) fn get(&self, id: u32) -> &[u32] {
        self.lists.get(id as usize).map_or(&[], |list| list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_table_says_so_and_keeps_its_lists() {
        let mut table = ListTable::default();
        let long = vec![7; MAX_LISTED / 2];
        assert_eq!((table.intern(&[1, 2]), table.intern(&long), table.intern(&[1, 2])), (0, 1, 0));
        assert!(!table.is_full);
        table.intern(&vec![8; MAX_LISTED / 2]);
        assert!(table.is_full);
        assert_eq!((table.get(0), table.get(1).len()), (&[1, 2][..], long.len()));
    }
}
