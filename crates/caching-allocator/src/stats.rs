//! The statistics of `torch.cuda.memory_stats()`.
//!
//! PyTorch refuses them under a pluggable allocator. These have the same names, and are counted at
//! the same places as in `c10/cuda/CUDACachingAllocator.cpp`.
//! `tests/suite/allocator/test_caching_allocator.py` compares every value with the native
//! allocator's.

use super::size_rules::BlockSizeClass;

/// One statistic: its current value, its peak, and the sums of its increases and decreases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct StatValues {
    current: u64,
    peak: u64,
    allocated: u64,
    freed: u64,
}

impl StatValues {
    pub(crate) fn add(&mut self, amount: i64) {
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

    fn for_each(&self, name: &str, visit: &mut impl FnMut(&str, u64)) {
        let values = [self.current, self.peak, self.allocated, self.freed];
        for (value_name, value) in VALUE_NAMES.iter().zip(values) {
            visit(&format!("{name}.{value_name}"), value);
        }
    }
}

macro_rules! stat_kinds {
    ($($kind:ident $name:literal)*) => {
        /// What is counted, per size class and in total.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum StatKind { $(#[doc = $name] $kind),* }
        const STAT_NAMES: &[&str] = &[$($name),*];

        #[cfg(test)]
        impl StatKind {
            pub(crate) const ALL: &[Self] = &[$(Self::$kind),*];
        }
    };
}

stat_kinds! {
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
const VALUE_NAMES: [&str; 4] = ["current", "peak", "allocated", "freed"];

/// The statistics of one device.
#[derive(Clone, Debug, Default)]
pub struct DeviceStats {
    by_kind: [[StatValues; 3]; STAT_NAMES.len()],
    /// Requests for which the driver was called again after cached segments were freed.
    pub num_alloc_retries: u64,
    /// Requests that failed for lack of memory.
    pub num_ooms: u64,
    /// Requests that failed at the memory limit without a retry (`throw_on_cudamalloc_oom`).
    pub num_oom_rejections: u64,
    /// How often the allocator waited for the events of all streams.
    pub num_sync_all_streams: u64,
    /// Segments that the driver allocated.
    pub num_device_alloc: u64,
    /// Segments that the driver freed.
    pub num_device_free: u64,
    /// Blocks of at least `max_split_size_mb`.
    pub(crate) oversize_allocations: StatValues,
    /// Segments of at least `max_split_size_mb`.
    pub(crate) oversize_segments: StatValues,
}

impl DeviceStats {
    /// Changes a statistic by `amount`, in its size class and in total.
    pub(crate) fn add(&mut self, kind: StatKind, size_class: BlockSizeClass, amount: i64) {
        let stats = &mut self.by_kind[kind as usize];
        stats[0].add(amount);
        stats[1 + size_class as usize].add(amount);
    }

    /// The current value, over both size classes.
    pub(crate) fn current(&self, kind: StatKind) -> u64 {
        self.by_kind[kind as usize][0].current
    }

    /// Sets every peak to the current value.
    pub fn reset_peaks(&mut self) {
        for stat in self.all_values() {
            stat.peak = stat.current;
        }
    }

    fn all_values(&mut self) -> impl Iterator<Item = &mut StatValues> {
        let oversize = [&mut self.oversize_allocations, &mut self.oversize_segments];
        self.by_kind.as_flattened_mut().iter_mut().chain(oversize)
    }

    /// Sets the accumulated sums and counts to 0.
    pub fn reset_sums(&mut self) {
        for stat in self.all_values() {
            (stat.allocated, stat.freed) = (0, 0);
        }
        (self.num_alloc_retries, self.num_ooms, self.num_sync_all_streams) = (0, 0, 0);
        (self.num_device_alloc, self.num_device_free) = (0, 0);
        self.num_oom_rejections = 0;
    }

    /// Calls `visit` with the name, as in `torch.cuda.memory_stats()`, and value of each.
    pub fn for_each(&self, mut visit: impl FnMut(&str, u64)) {
        for (kind, stats) in STAT_NAMES.iter().zip(&self.by_kind) {
            for (pool, stat) in POOLS.iter().zip(stats) {
                stat.for_each(&format!("{kind}.{pool}"), &mut visit);
            }
        }
        self.oversize_allocations.for_each("oversize_allocations", &mut visit);
        self.oversize_segments.for_each("oversize_segments", &mut visit);
        visit("num_alloc_retries", self.num_alloc_retries);
        visit("num_ooms", self.num_ooms);
        visit("num_oom_rejections", self.num_oom_rejections);
        visit("num_sync_all_streams", self.num_sync_all_streams);
        visit("num_device_alloc", self.num_device_alloc);
        visit("num_device_free", self.num_device_free);
    }
}
