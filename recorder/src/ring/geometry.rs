//! How large each thread's ring is.
//!
//! Constraint: a block of many rows packs best (a ResNet's events take a third of the bytes in blocks of 100,000 that they take in
//! blocks of 3,000), but the memory is not ours, and a program may have a hundred threads. Consequence: a few large rings for the
//! threads that come first, small ones for the rest, all together within what the recorder may need.

use gpumemtrace_format::ring::{CLASSES, Shape};

/// Threads that can record at the same time. Rings of threads that ended are used again.
pub(crate) const RINGS: usize = 96;
/// Of them, by size: the threads that come first do most. In a training that is the one that goes forward, and then, with one that
/// copies before it, the one that goes backward. The rest are small.
const LARGEST_RINGS: u32 = 1;
const LARGE_RINGS: u32 = 3;
const MIDDLING_RINGS: u32 = 16;
pub(crate) const FIRST_SMALL_RING: usize = (LARGEST_RINGS + LARGE_RINGS + MIDDLING_RINGS) as usize;
/// Fewest records in one ring: the longest definition has to fit in.
const FEWEST_RECORDS: u32 = 2048;
/// Most in a small one: readers take no larger ring file.
const MOST_RECORDS: u32 = 1 << 16;

/// Most in a large one, twice as many as in any other: the writer empties ring after ring, and a reader keeps what one thread did until
/// it has come to what others did meanwhile, at most a million events.
const MOST_IN_ONE: u32 = 1 << 18;

/// What the recorder needs beside the rings: caches of 96 threads, and what the writer is at.
const BESIDE_RINGS_BYTES: u64 = 16 << 20;

/// Rings, where the small ones have so many records at least.
fn shape_of(records: u32) -> Shape {
    let mut classes = [(0, 0); CLASSES];
    classes[0] = (LARGEST_RINGS, (32 * records).min(MOST_IN_ONE));
    classes[1] = (LARGE_RINGS, (16 * records).min(MOST_IN_ONE / 2));
    classes[2] = (MIDDLING_RINGS, FEWEST_RECORDS.max(2 * records));
    classes[3] = ((RINGS - FIRST_SMALL_RING) as u32, FEWEST_RECORDS.max(records));
    Shape::new(classes)
}

/// Rings as large as they may be where the recorder may need so much memory at most; all sizes are powers of two. 64 MiB make one ring of
/// 8 MiB, large ones of 4 MiB, middling ones of a half, small ones of a quarter.
pub(crate) fn shape_within(memory_bytes: u64) -> Shape {
    let for_rings = memory_bytes.saturating_sub(BESIDE_RINGS_BYTES);
    let mut records = MOST_RECORDS;
    while records > FEWEST_RECORDS / 4 && shape_of(records).file_bytes() > for_rings {
        records /= 2;
    }
    shape_of(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::ring::MAX_RING_FILE_BYTES;

    #[test]
    fn rings_are_as_large_as_the_memory_allows() {
        let records = |memory_bytes: u64| shape_within(memory_bytes).classes().map(|(_, records)| records);
        assert_eq!(records(64 << 20)[..5], [131_072, 65_536, 8192, 4096, 0]);
        assert_eq!(records(100 << 20), records(64 << 20));
        assert_eq!(records(112 << 20)[..4], [262_144, 131_072, 16_384, 8192]);
        assert_eq!(records(32 << 20)[..4], [16_384, 8192, FEWEST_RECORDS, FEWEST_RECORDS]);
        assert_eq!(records(1), records(32 << 20));
        assert_eq!(records(u64::MAX)[..4], [MOST_IN_ONE, MOST_IN_ONE / 2, 131_072, MOST_RECORDS]);
        for memory_bytes in [32 << 20, 64 << 20, 200 << 20, 1 << 30] {
            let shape = shape_within(memory_bytes);
            assert!(shape.file_bytes() + BESIDE_RINGS_BYTES <= memory_bytes, "{memory_bytes}");
            assert!(shape.file_bytes() <= MAX_RING_FILE_BYTES && shape.rings() == RINGS as u64);
        }
    }
}
