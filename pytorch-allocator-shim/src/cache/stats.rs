//! The numbers that `torch.cuda.memory_stats()` gives for the native allocator.
//!
//! Constraint: PyTorch refuses them under a pluggable allocator, and who moves to one needs them. Consequence: the same
//! figures with the same names, counted at the same places as in `c10/cuda/CUDACachingAllocator.cpp`.

use super::size_rules::Half;

/// One figure's course.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stat {
    current: u64,
    peak: u64,
    allocated: u64,
    freed: u64,
}

impl Stat {
    fn add(&mut self, amount: i64) {
        let size = amount.unsigned_abs();
        if amount < 0 {
            self.current = self.current.saturating_sub(size);
            self.freed += size;
        } else {
            self.current += size;
            self.peak = self.peak.max(self.current);
            self.allocated += size;
        }
    }
}

macro_rules! figures {
    ($($figure:ident $name:literal)*) => {
        /// What is counted for each half and for both.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Figure { $(#[doc = $name] $figure),* }
        const FIGURES: &[&str] = &[$($name),*];
    };
}

figures! {
    Allocation "allocation"
    Segment "segment"
    Active "active"
    InactiveSplit "inactive_split"
    AllocatedBytes "allocated_bytes"
    ReservedBytes "reserved_bytes"
    ActiveBytes "active_bytes"
    InactiveSplitBytes "inactive_split_bytes"
    RequestedBytes "requested_bytes"
}

const POOLS: [&str; 3] = ["all", "small_pool", "large_pool"];
const COURSE: [&str; 4] = ["current", "peak", "allocated", "freed"];

/// All of a device's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    figures: [[Stat; 3]; FIGURES.len()],
    /// Requests that a first call of the driver could not serve.
    pub(crate) num_alloc_retries: u64,
    /// Requests that were refused.
    pub(crate) num_ooms: u64,
    /// Times all streams' events were waited for.
    pub(crate) num_sync_all_streams: u64,
    /// Segments that came.
    pub(crate) num_device_alloc: u64,
    /// Segments that went.
    pub(crate) num_device_free: u64,
}

impl Stats {
    /// A figure changes.
    pub(crate) fn add(&mut self, figure: Figure, half: Half, amount: i64) {
        let stats = &mut self.figures[figure as usize];
        stats[0].add(amount);
        stats[1 + half as usize].add(amount);
    }

    /// What it is now, over both halves.
    pub(crate) fn current(&self, figure: Figure) -> u64 {
        self.figures[figure as usize][0].current
    }

    /// Peaks begin again at what is now.
    pub(crate) fn reset_peaks(&mut self) {
        for stat in self.figures.as_flattened_mut() {
            stat.peak = stat.current;
        }
    }

    /// Sums and counts begin again at 0.
    pub(crate) fn reset_sums(&mut self) {
        for stat in self.figures.as_flattened_mut() {
            (stat.allocated, stat.freed) = (0, 0);
        }
        (self.num_alloc_retries, self.num_ooms, self.num_sync_all_streams) = (0, 0, 0);
        (self.num_device_alloc, self.num_device_free) = (0, 0);
    }

    /// Name and value of each, with the names of `torch.cuda.memory_stats()`.
    pub(crate) fn each(&self, mut tell: impl FnMut(&str, u64)) {
        for (figure, stats) in FIGURES.iter().zip(&self.figures) {
            for (pool, stat) in POOLS.iter().zip(stats) {
                let values = [stat.current, stat.peak, stat.allocated, stat.freed];
                for (course, value) in COURSE.iter().zip(values) {
                    tell(&format!("{figure}.{pool}.{course}"), value);
                }
            }
        }
        tell("num_alloc_retries", self.num_alloc_retries);
        tell("num_ooms", self.num_ooms);
        tell("num_sync_all_streams", self.num_sync_all_streams);
        tell("num_device_alloc", self.num_device_alloc);
        tell("num_device_free", self.num_device_free);
    }
}
