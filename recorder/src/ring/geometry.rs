//! How many records each thread's ring holds.
//!
//! Long blocks compress best: the events of a ResNet take a third of the bytes in blocks of 100,000
//! rows that they take in blocks of 3,000. But the memory belongs to the program, and a program may
//! have a hundred threads. So the threads that record first get a few large rings, and the rest get
//! small ones. All rings together stay within the memory limit of the recorder.

use gpumemtrace_format::ring::{MAX_RING_CLASSES, RingLayout};

/// Threads that can record at the same time. The rings of ended threads are reused.
pub(crate) const RINGS: usize = 96;
/// Rings by size class; all others are small. The threads that record first record most: in
/// training, the forward thread, then a data-copy thread and the backward thread.
const LARGEST_RINGS: u32 = 1;
const LARGE_RINGS: u32 = 3;
const MEDIUM_RINGS: u32 = 16;
pub(crate) const FIRST_SMALL_RING: usize = (LARGEST_RINGS + LARGE_RINGS + MEDIUM_RINGS) as usize;
/// The longest definition must fit into any ring.
const MIN_RECORDS: u32 = 2048;
/// Limit of a small ring; readers refuse a larger ring file.
const MAX_SMALL_RECORDS: u32 = 1 << 16;

/// Limit of the largest ring, twice that of any other. The writer drains ring after ring, and a
/// reader buffers one thread's events, at most a million, until it reaches the other threads'
/// events.
const MAX_LARGEST_RECORDS: u32 = 1 << 18;

/// Memory besides the rings: the caches of 96 threads, and the writer's buffers.
const OTHER_MEMORY_BYTES: u64 = 16 << 20;

/// The rings if small ones hold `records` records.
fn shape_of(records: u32) -> RingLayout {
    let mut classes = [(0, 0); MAX_RING_CLASSES];
    classes[0] = (LARGEST_RINGS, (32 * records).min(MAX_LARGEST_RECORDS));
    classes[1] = (LARGE_RINGS, (16 * records).min(MAX_LARGEST_RECORDS / 2));
    classes[2] = (MEDIUM_RINGS, MIN_RECORDS.max(2 * records));
    classes[3] = ((RINGS - FIRST_SMALL_RING) as u32, MIN_RECORDS.max(records));
    RingLayout::new(classes)
}

/// The largest rings that fit if the recorder may use `memory_bytes`. All sizes are powers of two.
///
/// 64 MiB give one ring of 8 MiB, large ones of 4 MiB, medium ones of 512 KiB, small ones of 256
/// KiB.
pub(crate) fn shape_within(memory_bytes: u64) -> RingLayout {
    let for_rings = memory_bytes.saturating_sub(OTHER_MEMORY_BYTES);
    let mut records = MAX_SMALL_RECORDS;
    while records > MIN_RECORDS / 4 && shape_of(records).file_bytes() > for_rings {
        records /= 2;
    }
    shape_of(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::ring::MAX_RING_FILE_BYTES;

    #[test]
    fn rings_are_as_large_as_the_memory_limit_allows() {
        let records = |memory_bytes: u64| shape_within(memory_bytes).classes().map(|(_, records)| records);
        assert_eq!(records(64 << 20)[..5], [131_072, 65_536, 8192, 4096, 0]);
        assert_eq!(records(100 << 20), records(64 << 20));
        assert_eq!(records(112 << 20)[..4], [262_144, 131_072, 16_384, 8192]);
        assert_eq!(records(32 << 20)[..4], [16_384, 8192, MIN_RECORDS, MIN_RECORDS]);
        assert_eq!(records(1), records(32 << 20));
        let largest = [MAX_LARGEST_RECORDS, MAX_LARGEST_RECORDS / 2, 131_072, MAX_SMALL_RECORDS];
        assert_eq!(records(u64::MAX)[..4], largest);
        for memory_bytes in [32 << 20, 64 << 20, 200 << 20, 1 << 30] {
            let shape = shape_within(memory_bytes);
            assert!(shape.file_bytes() + OTHER_MEMORY_BYTES <= memory_bytes, "{memory_bytes}");
            assert!(shape.file_bytes() <= MAX_RING_FILE_BYTES && shape.rings() == RINGS as u64);
        }
    }
}
