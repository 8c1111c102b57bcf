//! What is known of the bytes of simulated memory.
//!
//! A page that a program or a CPU kernel wrote has the [`Knowledge`] of each byte. Pages without an
//! entry were never written: they read as zeros, which are placeholders. [`on_allocated`] makes
//! memory that is allocated again read as zeros, too: no kernel overwrites what the block held
//! before.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: u64 = 4096;
const WORDS: usize = (PAGE / 64) as usize;

/// What is known of a value. What is computed from several values is known as the least of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Knowledge {
    /// A comparison of placeholders, or computed from one.
    Undecided,
    /// Not what a GPU would compute.
    Placeholder,
    /// What a GPU would compute.
    Known,
}

/// What is known of what is computed from values; without any it is known.
pub(crate) fn least(all: impl IntoIterator<Item = Knowledge>) -> Knowledge {
    all.into_iter().min().unwrap_or(Knowledge::Known)
}

/// One bit for each byte of a page.
#[derive(Debug)]
struct Bits {
    known: [u64; WORDS],
    undecided: [u64; WORDS],
}

/// The written pages by address.
#[derive(Debug, Default)]
struct Written(BTreeMap<u64, Box<Bits>>);

static WRITTEN: Mutex<Written> = Mutex::new(Written(BTreeMap::new()));

/// Parts of memory that were ever written, by a hash of their number. Most kernels write none, and
/// find that out here without the lock.
struct Touched<const WORDS: usize> {
    bits: [AtomicU64; WORDS],
    /// Length of a part as a power of two.
    shift: u32,
}

static PAGES: Touched<1024> = Touched { bits: [const { AtomicU64::new(0) }; 1024], shift: 12 };
/// Parts of 2 MiB, which are PyTorch's smallest segments, for long ranges.
static REGIONS: Touched<64> = Touched { bits: [const { AtomicU64::new(0) }; 64], shift: 21 };

impl<const WORDS: usize> Touched<WORDS> {
    fn parts(&self, addr: u64, len: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let last = addr.saturating_add(len.max(1) - 1) >> self.shift;
        (addr >> self.shift..=last).map(|part| (&self.bits[part as usize / 64 % WORDS], 1 << (part % 64)))
    }

    fn add(&self, addr: u64, len: u64) {
        for (word, bit) in self.parts(addr, len) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn may_contain(&self, addr: u64, len: u64) -> bool {
        self.parts(addr, len).any(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }
}

/// False if no byte of the range was ever written.
fn may_be_written(addr: u64, len: u64) -> bool {
    REGIONS.may_contain(addr, len) && (len > 64 * PAGE || PAGES.may_contain(addr, len))
}

fn written() -> MutexGuard<'static, Written> {
    WRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that `len` bytes were written.
pub(crate) fn on_written(addr: u64, len: u64, knowledge: Knowledge) {
    PAGES.add(addr, len);
    REGIONS.add(addr, len);
    written().set(addr, len, knowledge);
}

/// The least that is known of `len` bytes. Of larger ranges than are computed nothing is known.
pub(crate) fn knowledge(addr: u64, len: u64) -> Knowledge {
    let is_large = len > super::limit_bytes();
    if len > 0 && (is_large || !may_be_written(addr, len)) {
        Knowledge::Placeholder
    } else {
        written().least(addr, len)
    }
}

/// Forgets what is known of bytes that are written without being computed. The pages stay in the
/// map: they still hold what they held, and must be cleared when they are allocated again.
pub(crate) fn forget(addr: u64, len: u64) {
    if may_be_written(addr, len) {
        written().clear_bits(addr, len);
    }
}

/// Forgets pages that the host takes back, so that they read as zeros.
pub(crate) fn on_freed(addr: u64, len: u64) {
    if may_be_written(addr, len) {
        written().remove(addr, len);
    }
}

/// Records that some of these bytes were written, so that they are cleared when they are allocated
/// again. What is known of them stays the same.
pub(crate) fn on_touched(addr: u64, len: u64) {
    PAGES.add(addr, len);
    REGIONS.add(addr, len);
    written().touch(addr, len);
}

/// Makes memory that is allocated read as zeros.
///
/// # Safety
///
/// The range is committed simulated memory that nothing uses.
pub(crate) unsafe fn on_allocated(addr: u64, len: u64) {
    if !may_be_written(addr, len) {
        return;
    }
    for (from, len) in written().remove(addr, len) {
        // SAFETY: a part of the range, by the contract of this function.
        unsafe { std::ptr::write_bytes(from as *mut u8, 0, len as usize) };
    }
}

/// The bits `from..to` of a word, `to` at most 64.
fn mask(from: u64, to: u64) -> u64 {
    (u64::MAX << from) & (u64::MAX >> (64 - to))
}

/// The words of a page that hold the bytes `addr..end`, each with the mask of its bits.
fn words_of(page: u64, addr: u64, end: u64) -> impl Iterator<Item = (usize, u64)> {
    let (from, to) = (addr.max(page) - page, end.min(page + PAGE) - page);
    (from / 64..to.div_ceil(64)).map(move |word| {
        let start = word * 64;
        (word as usize, mask(from.saturating_sub(start), (to - start).min(64)))
    })
}

fn pages(addr: u64, end: u64) -> impl Iterator<Item = u64> {
    (addr & !(PAGE - 1)..end).step_by(PAGE as usize)
}

impl Bits {
    fn empty() -> Box<Self> {
        Box::new(Self { known: [0; WORDS], undecided: [0; WORDS] })
    }
}

impl Written {
    fn set(&mut self, addr: u64, len: u64, knowledge: Knowledge) {
        let end = addr + len;
        for page in pages(addr, end) {
            let bits = self.0.entry(page).or_insert_with(Bits::empty);
            for (word, mask) in words_of(page, addr, end) {
                let put = |bits: &mut u64, is_set| *bits = *bits & !mask | if is_set { mask } else { 0 };
                put(&mut bits.known[word], knowledge == Knowledge::Known);
                put(&mut bits.undecided[word], knowledge == Knowledge::Undecided);
            }
        }
    }

    fn least(&self, addr: u64, len: u64) -> Knowledge {
        let end = addr + len;
        let of_page = |page| {
            let Some(bits) = self.0.get(&page) else { return Knowledge::Placeholder };
            let of_word =
                |(word, mask): (usize, u64)| match (bits.known[word] & mask, bits.undecided[word] & mask) {
                    (_, 1..) => Knowledge::Undecided,
                    (known, _) if known == mask => Knowledge::Known,
                    _ => Knowledge::Placeholder,
                };
            least(words_of(page, addr, end).map(of_word))
        };
        least(pages(addr, end).map(of_page))
    }

    fn touch(&mut self, addr: u64, len: u64) {
        for page in pages(addr, addr + len) {
            self.0.entry(page).or_insert_with(Bits::empty);
        }
    }

    /// Clears the bits of a range. Returns its parts in written pages, as addresses and lengths.
    fn clear_bits(&mut self, addr: u64, len: u64) -> Vec<(u64, u64)> {
        let end = addr.saturating_add(len);
        let mut parts = Vec::new();
        for (&page, bits) in self.0.range_mut(addr & !(PAGE - 1)..end) {
            for (word, mask) in words_of(page, addr, end) {
                bits.known[word] &= !mask;
                bits.undecided[word] &= !mask;
            }
            let from = addr.max(page);
            parts.push((from, end.min(page + PAGE) - from));
        }
        parts
    }

    /// As [`Self::clear_bits`], for bytes that become zero: whole pages leave the map.
    fn remove(&mut self, addr: u64, len: u64) -> Vec<(u64, u64)> {
        let parts = self.clear_bits(addr, len);
        for &(page, _) in parts.iter().filter(|(_, len)| *len == PAGE) {
            self.0.remove(&page);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::Knowledge::{Known, Placeholder, Undecided};
    use super::*;

    #[test]
    fn bytes_are_known_one_by_one_and_across_pages() {
        let mut written = Written::default();
        written.set(PAGE - 3, 6, Known);
        assert_eq!((written.least(PAGE - 3, 6), written.least(PAGE, 1)), (Known, Known));
        assert_eq!((written.least(PAGE - 4, 2), written.least(PAGE + 2, 2)), (Placeholder, Placeholder));
        assert_eq!((written.least(7 * PAGE, 1), written.least(7 * PAGE, 0)), (Placeholder, Known));
        written.set(PAGE, 1, Undecided);
        assert_eq!((written.least(PAGE - 3, 6), written.least(PAGE - 3, 3)), (Undecided, Known));
        written.set(0, 3 * PAGE, Known);
        assert_eq!((written.least(0, 3 * PAGE), written.least(1, 2 * PAGE)), (Known, Known));
    }

    #[test]
    fn forgotten_parts_are_those_of_written_pages() {
        let mut written = Written::default();
        written.set(PAGE + 8, 8, Known);
        written.set(3 * PAGE, 1, Undecided);
        assert_eq!(written.remove(PAGE + 12, PAGE), [(PAGE + 12, PAGE - 12)]);
        assert_eq!((written.least(PAGE + 8, 4), written.least(PAGE + 8, 5)), (Known, Placeholder));
        assert_eq!(written.remove(0, 8 * PAGE), [(PAGE, PAGE), (3 * PAGE, PAGE)]);
        assert!(written.0.is_empty());
    }

    #[test]
    fn memory_that_is_allocated_again_reads_as_zeros() {
        let mut memory = vec![7_u8; 100];
        let addr = memory.as_mut_ptr() as u64;
        on_written(addr + 10, 5, Placeholder);
        // SAFETY: the memory is ours.
        unsafe { on_allocated(addr, 20) };
        assert_eq!((memory[..20].iter().all(|byte| *byte == 0), memory[20]), (true, 7));
    }

    #[test]
    fn forgotten_and_touched_pages_are_cleared_when_they_are_allocated_again() {
        let len = 4 * PAGE as usize;
        for mark in [|addr| on_written(addr, 4 * PAGE, Known), |addr| on_touched(addr, 4 * PAGE)] {
            let mut memory = vec![7_u8; len];
            let addr = memory.as_mut_ptr() as u64;
            mark(addr);
            forget(addr, len as u64);
            assert_eq!(knowledge(addr, 1), Placeholder);
            // SAFETY: the memory is ours.
            unsafe { on_allocated(addr, len as u64) };
            assert!(memory.iter().all(|byte| *byte == 0));
        }
    }
}
