//! Objects that were told and have not gone: a table without locks.
//!
//! Constraint: many threads make and end objects, in hooks that may not wait; only the end of what was told may be told, and once,
//! whatever superclasses and other libraries do in between. Consequence: a table by object, in which an entry is put and taken by one
//! compare-and-swap. Two threads are never at the same object: one has it from the other, after it was made. An object lies within
//! a few places of where its number says; where these are full it goes to the next table, twice as large, which is made then: the one thing that
//! takes a call of the system.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Places that one key may lie at.
const WINDOW: usize = 32;
/// Entries of the first table.
const FIRST: usize = 1 << 12;
/// The last has 2^27.
const TABLES: usize = 16;

const EMPTY: u64 = 0;
/// Something was here, and those behind it are still to be found.
const GONE: u64 = 1;

/// What is kept of an object.
pub(crate) type Facts = [u64; 3];

#[derive(Debug)]
#[repr(C)]
struct Entry {
    key: AtomicU64,
    facts: [AtomicU64; 3],
}

/// A table. Keys are neither 0 nor 1.
#[derive(Debug)]
pub(crate) struct Live {
    tables: [AtomicPtr<Entry>; TABLES],
}

/// How it went with a new key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Put {
    Done,
    /// It is there already.
    Known,
    /// No memory, or a hundred million objects.
    Full,
}

impl Live {
    pub(crate) const fn new() -> Self {
        Self { tables: [const { AtomicPtr::new(std::ptr::null_mut()) }; TABLES] }
    }

    /// Adds a key.
    pub(crate) fn put(&self, key: u64, facts: Facts) -> Put {
        if self.find(key).is_some() {
            return Put::Known;
        }
        for number in 0..TABLES {
            let Some(table) = self.table(number).or_else(|| self.make(number)) else { return Put::Full };
            for entry in window(table, key) {
                let now = entry.key.load(Ordering::Relaxed);
                if now > GONE
                    || entry.key.compare_exchange(now, key, Ordering::AcqRel, Ordering::Relaxed).is_err()
                {
                    continue;
                }
                for (to, fact) in entry.facts.iter().zip(facts) {
                    to.store(fact, Ordering::Release);
                }
                return Put::Done;
            }
        }
        Put::Full
    }

    /// What is kept of a key.
    pub(crate) fn get(&self, key: u64) -> Option<Facts> {
        self.find(key).map(facts_of)
    }

    /// Takes a key away.
    pub(crate) fn take(&self, key: u64) -> Option<Facts> {
        let entry = self.find(key)?;
        let facts = facts_of(entry);
        entry.key.compare_exchange(key, GONE, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(facts)
    }

    fn find(&self, key: u64) -> Option<&'static Entry> {
        let tables = (0..TABLES).map_while(|number| self.table(number));
        tables
            .flat_map(|table| before_empty(window(table, key)))
            .find(|entry| entry.key.load(Ordering::Acquire) == key)
    }

    fn table(&self, number: usize) -> Option<&'static [Entry]> {
        let table = self.tables[number].load(Ordering::Acquire);
        // SAFETY: never given back, and as long as `make` has made it.
        (!table.is_null()).then(|| unsafe { std::slice::from_raw_parts(table, FIRST << number) })
    }

    #[cold]
    fn make(&self, number: usize) -> Option<&'static [Entry]> {
        let bytes = size_of::<Entry>() * (FIRST << number);
        // SAFETY: a new private mapping. Zero bytes are empty entries.
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
        let place = &self.tables[number];
        if place
            .compare_exchange(std::ptr::null_mut(), table.cast(), Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // Another thread was first.
            // SAFETY: exactly our mapping, which nobody else knows.
            unsafe { libc::munmap(table, bytes) };
        }
        self.table(number)
    }
}

fn facts_of(entry: &Entry) -> Facts {
    std::array::from_fn(|at| entry.facts[at].load(Ordering::Acquire))
}

fn window(table: &'static [Entry], key: u64) -> impl Iterator<Item = &'static Entry> {
    // Objects lie at multiples of 16; what is above is mixed by the multiplication.
    let begin = ((key >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    (0..WINDOW).map(move |at| &table[(begin + at) & (table.len() - 1)])
}

/// Nothing lies behind a place that was never used.
fn before_empty(window: impl Iterator<Item = &'static Entry>) -> impl Iterator<Item = &'static Entry> {
    window.take_while(|entry| entry.key.load(Ordering::Acquire) != EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_found_and_taken_once() {
        let live = Live::new();
        assert_eq!((live.get(16), live.take(16)), (None, None));
        assert_eq!(live.put(16, [1, 2, 3]), Put::Done);
        assert_eq!(live.put(16, [4, 5, 6]), Put::Known);
        assert_eq!(live.get(16), Some([1, 2, 3]));
        assert_eq!((live.take(16), live.take(16)), (Some([1, 2, 3]), None));
        assert_eq!(live.put(16, [7, 8, 9]), Put::Done, "its place may be used again");
        assert_eq!(live.take(16), Some([7, 8, 9]));
    }

    #[test]
    fn more_than_a_table_holds_goes_to_the_next() {
        let live = Live::new();
        let many = 10 * FIRST as u64;
        for round in 0..3 {
            for key in 1..=many {
                assert_eq!(live.put(key * 16, [key, round, 0]), Put::Done);
            }
            for key in 1..=many {
                assert_eq!(live.take(key * 16), Some([key, round, 0]), "key {key}");
            }
        }
        assert!(live.table(1).is_some());
    }

    #[test]
    fn eight_threads_lose_nothing() {
        static LIVE: Live = Live::new();
        let threads: Vec<_> = (0..8u64)
            .map(|thread| {
                std::thread::spawn(move || {
                    for round in 0..200u64 {
                        let keys = (1..=100u64).map(|key| (key * 8 + thread) * 16);
                        for key in keys.clone() {
                            assert_eq!(LIVE.put(key, [key, thread, round]), Put::Done);
                        }
                        for key in keys {
                            assert_eq!(LIVE.take(key), Some([key, thread, round]));
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
