//! Samples blocks by size, so that a profile has at most a fixed number of rows.
//!
//! A block of `size` bytes is kept with probability `1 - exp(-size / interval)`, as if one byte per
//! interval were sampled (Poisson sampling). Its weight is its size divided by that probability, so
//! that sums are right on average; large blocks are kept and exact. The choice depends only on the
//! block, so its free is kept too, and equal traces give equal profiles.

use gpumemtrace_replay::report::WalkedBlock;

/// Parts of a power of two that sizes are counted by.
const PARTS: u64 = 8;
const BUCKETS: usize = 65 * PARTS as usize;
/// Share of the limit that the expected number of rows may reach. The number of rows is random,
/// with a standard deviation far below the rest.
const MARGIN: f64 = 0.98;

/// The mean distance of sampled bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ByteSampling {
    /// `None` if all blocks are kept.
    pub(super) interval_bytes: Option<f64>,
}

impl ByteSampling {
    /// The bytes that a block stands for; `None` if it is left out.
    pub(super) fn weight(self, block: &WalkedBlock) -> Option<u64> {
        let Some(interval) = self.interval_bytes else { return Some(block.size_bytes) };
        let kept = kept_share(block.size_bytes as f64, interval);
        let chance = mix_bits(block.seq ^ block.addr.rotate_left(32)) as f64 / u64::MAX as f64;
        (chance < kept).then(|| (block.size_bytes as f64 / kept).round() as u64)
    }
}

fn kept_share(size: f64, interval: f64) -> f64 {
    -(-size / interval).exp_m1()
}

/// The finalizer of `SplitMix64`, a bijection that spreads every bit.
fn mix_bits(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The rows that a profile would have without sampling, by size of the block.
#[derive(Clone, Debug)]
pub(super) struct RowCounts {
    rows: Vec<u64>,
}

impl Default for RowCounts {
    fn default() -> Self {
        Self { rows: vec![0; BUCKETS] }
    }
}

impl RowCounts {
    pub(super) fn add(&mut self, size_bytes: u64) {
        self.rows[bucket_of(size_bytes)] += 1;
    }

    pub(super) fn remove(&mut self, size_bytes: u64) {
        let rows = &mut self.rows[bucket_of(size_bytes)];
        *rows = rows.saturating_sub(1);
    }

    pub(super) fn total(&self) -> u64 {
        self.rows.iter().sum()
    }

    /// The sampling that leaves at most `limit` rows.
    pub(super) fn sampling(&self, limit: u64) -> ByteSampling {
        if self.total() <= limit {
            return ByteSampling { interval_bytes: None };
        }
        let mut interval = 1.0;
        while self.expected_rows(interval) > limit as f64 * MARGIN {
            interval *= 1.25;
        }
        ByteSampling { interval_bytes: Some(interval) }
    }

    /// At most this many rows are kept on average.
    fn expected_rows(&self, interval: f64) -> f64 {
        let rows = self.rows.iter().enumerate().filter(|(_, rows)| **rows > 0);
        rows.map(|(bucket, rows)| *rows as f64 * kept_share(upper_size(bucket), interval)).sum()
    }
}

/// The bucket of a size: its highest bit, and the bits below it.
fn bucket_of(size_bytes: u64) -> usize {
    if size_bytes < PARTS {
        return size_bytes as usize;
    }
    let shift = size_bytes.ilog2() - PARTS.ilog2();
    ((u64::from(shift) + 1) * PARTS + (size_bytes >> shift) % PARTS) as usize
}

/// A size that no block of a bucket exceeds.
fn upper_size(bucket: usize) -> f64 {
    let (shift, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    if shift == 0 { part as f64 } else { ((PARTS + part + 1) as f64) * 2f64.powi(shift as i32 - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::ThreadId;
    use gpumemtrace_replay::report::BlockLayer;
    use proptest::prelude::*;

    fn block(seq: u64, size_bytes: u64) -> WalkedBlock {
        WalkedBlock {
            layer: BlockLayer::Torch,
            device: 0,
            addr: 0x7f00_0000_0000 + seq % 1000 * 512,
            size_bytes,
            requested_bytes: None,
            stream: None,
            pool: None,
            stack: 0,
            site: 0,
            time_ns: seq,
            step: 0,
            seq,
            thread: ThreadId(1),
        }
    }

    proptest! {
        #[test]
        fn buckets_bound_their_sizes(size: u64) {
            let bucket = bucket_of(size);
            prop_assert!(bucket < BUCKETS);
            prop_assert!(upper_size(bucket) >= size as f64);
            prop_assert!(size < PARTS || upper_size(bucket) <= size as f64 * (1.0 + 2.0 / PARTS as f64));
        }
    }

    #[test]
    fn few_rows_are_all_kept_and_exact() {
        let mut counts = RowCounts::default();
        (0..1000).for_each(|_| counts.add(512));
        let sampling = counts.sampling(1000);
        assert_eq!(sampling.interval_bytes, None);
        assert!((0..1000).all(|seq| sampling.weight(&block(seq, 512)) == Some(512)));
    }

    #[test]
    fn sampled_rows_keep_the_limit_and_the_sum() {
        let size_of = |seq: u64| [512, 4096, 1 << 20, 64 << 20][(seq % 4) as usize];
        let mut counts = RowCounts::default();
        let blocks = 400_000;
        (0..blocks).for_each(|seq| counts.add(size_of(seq)));
        let sampling = counts.sampling(250_000);
        let kept: Vec<(u64, u64)> =
            (0..blocks).filter_map(|seq| Some((seq, sampling.weight(&block(seq, size_of(seq)))?))).collect();
        assert!((200_000..250_000).contains(&kept.len()), "{} rows", kept.len());
        for class in 0..4 {
            let sum: u64 = kept.iter().filter(|(seq, _)| seq % 4 == class).map(|(_, weight)| weight).sum();
            let exact = blocks / 4 * size_of(class);
            let error = (sum as f64 / exact as f64 - 1.0).abs();
            assert!(error < 0.03, "class {class}: {error}");
        }
        // The largest blocks are all there.
        assert!(kept.iter().filter(|(seq, _)| seq % 4 == 3).all(|(_, weight)| *weight == 64 << 20));
    }
}
