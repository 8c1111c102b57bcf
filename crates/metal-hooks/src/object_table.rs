//! A lock-free hash table from an object's address to three words about it.
//!
//! Many threads create and end objects, in hooks that may not wait. The end of an object must be
//! recorded exactly once, whatever superclasses and other libraries do in between. A slot is
//! therefore claimed and released by one compare-and-swap. Two threads never use the same key at
//! once: a thread gets an object from another one only after its creation.
//!
//! A key lies within [`WINDOW`] slots of its hash. When these are occupied, it goes to the next
//! table, which is twice as large and mapped on demand. That mapping is the only system call.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Number of slots in one table that a key may occupy.
const WINDOW: usize = 32;
/// Number of slots in the first table.
const FIRST_TABLE_SLOTS: usize = 1 << 12;
/// The last table has 2^27 slots.
const MAX_TABLES: usize = 16;

/// Key of a slot that was never used. A search ends here.
const EMPTY: u64 = 0;
/// Key of a slot that is free again. A search continues behind it.
const REMOVED: u64 = 1;

/// The value of a key; `object_info` gives it a meaning.
pub(crate) type ObjectWords = [u64; 3];

#[derive(Debug)]
#[repr(C)]
struct ObjectTableSlot {
    key: AtomicU64,
    words: [AtomicU64; 3],
}

/// The table. The keys 0 and 1 are reserved.
#[derive(Debug)]
pub(crate) struct ObjectTable {
    tables: [AtomicPtr<ObjectTableSlot>; MAX_TABLES],
}

/// The result of an [`ObjectTable::insert`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InsertResult {
    Inserted,
    /// The key exists; its value is unchanged.
    Exists,
    /// No memory, or more than a hundred million objects.
    Full,
}

impl ObjectTable {
    pub(crate) const fn new() -> Self {
        Self { tables: [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_TABLES] }
    }

    /// Inserts a key with its value.
    pub(crate) fn insert(&self, key: u64, words: ObjectWords) -> InsertResult {
        if self.find(key).is_some() {
            return InsertResult::Exists;
        }
        for number in 0..MAX_TABLES {
            let Some(table) = self.table(number).or_else(|| self.map_table(number)) else {
                return InsertResult::Full;
            };
            for slot in window(table, key) {
                let now = slot.key.load(Ordering::Relaxed);
                if now > REMOVED
                    || slot.key.compare_exchange(now, key, Ordering::AcqRel, Ordering::Relaxed).is_err()
                {
                    continue;
                }
                for (to, word) in slot.words.iter().zip(words) {
                    to.store(word, Ordering::Release);
                }
                return InsertResult::Inserted;
            }
        }
        InsertResult::Full
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: u64) -> Option<ObjectWords> {
        self.find(key).map(words_of)
    }

    /// Removes a key and returns its value. Of several callers, one succeeds.
    pub(crate) fn remove(&self, key: u64) -> Option<ObjectWords> {
        let slot = self.find(key)?;
        let words = words_of(slot);
        slot.key.compare_exchange(key, REMOVED, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(words)
    }

    fn find(&self, key: u64) -> Option<&'static ObjectTableSlot> {
        let tables = (0..MAX_TABLES).map_while(|number| self.table(number));
        tables
            .flat_map(|table| until_empty(window(table, key)))
            .find(|slot| slot.key.load(Ordering::Acquire) == key)
    }

    fn table(&self, number: usize) -> Option<&'static [ObjectTableSlot]> {
        let table = self.tables[number].load(Ordering::Acquire);
        // SAFETY: never unmapped, with as many slots as `map_table` has mapped.
        (!table.is_null()).then(|| unsafe { std::slice::from_raw_parts(table, FIRST_TABLE_SLOTS << number) })
    }

    #[cold]
    fn map_table(&self, number: usize) -> Option<&'static [ObjectTableSlot]> {
        let bytes = size_of::<ObjectTableSlot>() * (FIRST_TABLE_SLOTS << number);
        // SAFETY: a new private mapping. Zeroed slots are empty.
        let table = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        if table == libc::MAP_FAILED {
            return None;
        }
        let entry = &self.tables[number];
        if entry
            .compare_exchange(std::ptr::null_mut(), table.cast(), Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // Another thread mapped this table first.
            // SAFETY: our own mapping, which no other thread has seen.
            unsafe { libc::munmap(table, bytes) };
        }
        self.table(number)
    }
}

fn words_of(slot: &ObjectTableSlot) -> ObjectWords {
    std::array::from_fn(|at| slot.words[at].load(Ordering::Acquire))
}

fn window(table: &'static [ObjectTableSlot], key: u64) -> impl Iterator<Item = &'static ObjectTableSlot> {
    // Objects are aligned to 16 bytes; the multiplication mixes the remaining bits.
    let hash = ((key >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    (0..WINDOW).map(move |at| &table[(hash + at) & (table.len() - 1)])
}

/// Cuts a window at its first slot that was never used: no key lies behind it.
fn until_empty(
    window: impl Iterator<Item = &'static ObjectTableSlot>,
) -> impl Iterator<Item = &'static ObjectTableSlot> {
    window.take_while(|slot| slot.key.load(Ordering::Acquire) != EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_key_is_found_and_removed_once() {
        let table = ObjectTable::new();
        assert_eq!((table.get(16), table.remove(16)), (None, None));
        assert_eq!(table.insert(16, [1, 2, 3]), InsertResult::Inserted);
        assert_eq!(table.insert(16, [4, 5, 6]), InsertResult::Exists);
        assert_eq!(table.get(16), Some([1, 2, 3]));
        assert_eq!((table.remove(16), table.remove(16)), (Some([1, 2, 3]), None));
        assert_eq!(table.insert(16, [7, 8, 9]), InsertResult::Inserted, "its slot is reused");
        assert_eq!(table.remove(16), Some([7, 8, 9]));
    }

    #[test]
    fn overflow_goes_to_the_next_table() {
        let table = ObjectTable::new();
        let many = 10 * FIRST_TABLE_SLOTS as u64;
        for round in 0..3 {
            for key in 1..=many {
                assert_eq!(table.insert(key * 16, [key, round, 0]), InsertResult::Inserted);
            }
            for key in 1..=many {
                assert_eq!(table.remove(key * 16), Some([key, round, 0]), "key {key}");
            }
        }
        assert!(table.table(1).is_some());
    }

    #[test]
    fn eight_threads_lose_no_key() {
        static TABLE: ObjectTable = ObjectTable::new();
        let threads: Vec<_> = (0..8u64)
            .map(|thread| {
                std::thread::spawn(move || {
                    for round in 0..200u64 {
                        let keys = (1..=100u64).map(|key| (key * 8 + thread) * 16);
                        for key in keys.clone() {
                            assert_eq!(TABLE.insert(key, [key, thread, round]), InsertResult::Inserted);
                        }
                        for key in keys {
                            assert_eq!(TABLE.remove(key), Some([key, thread, round]));
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
