//! A segment of the naive allocator, or an expandable segment with its mapped pages.

use std::collections::{BTreeMap, BTreeSet};

use super::naive_allocator::BlockUse;
use crate::PoolId;
use crate::size_rules::BlockSizeClass;

#[derive(Debug)]
pub(super) struct NaiveBlock {
    pub(super) bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) usage: BlockUse,
}

#[derive(Debug)]
pub(super) struct NaiveSpace {
    pub(super) bytes: u64,
    /// Set for an expandable segment.
    pub(super) page_bytes: Option<u64>,
    /// Numbers of the pages with memory.
    pub(super) mapped: BTreeSet<u64>,
    pub(super) stream: u64,
    pub(super) pool: PoolId,
    pub(super) size_class: BlockSizeClass,
    /// Order among runs of equal size.
    pub(super) number: u64,
    /// Blocks that are not free, by address.
    pub(super) blocks: BTreeMap<u64, NaiveBlock>,
    /// Look-ups in the pool at the last free.
    pub(super) free_since: u64,
}

impl NaiveSpace {
    /// Address and bytes of the runs of one state of memory, in order.
    fn runs(&self, start: u64) -> Vec<(u64, u64, bool)> {
        let Some(page) = self.page_bytes else { return vec![(start, self.bytes, true)] };
        let mut runs: Vec<(u64, u64, bool)> = Vec::new();
        for number in 0..self.bytes / page {
            let is_mapped = self.mapped.contains(&number);
            match runs.last_mut() {
                Some((_, bytes, same)) if *same == is_mapped => *bytes += page,
                _ => runs.push((start + number * page, page, is_mapped)),
            }
        }
        runs
    }

    /// Runs with memory and without a block, in order.
    pub(super) fn free_runs(&self, start: u64) -> Vec<(u64, u64)> {
        let mut free = Vec::new();
        for (addr, bytes, _) in self.runs(start).into_iter().filter(|run| run.2) {
            let mut at = addr;
            for (block, taken) in self.blocks.range(addr..addr + bytes) {
                free.push((at, block - at));
                at = block + taken.bytes;
            }
            free.push((at, addr + bytes - at));
        }
        free.retain(|(_, bytes)| *bytes > 0);
        free
    }

    /// Bytes without memory that begin at this address.
    pub(super) fn unmapped_at(&self, start: u64, addr: u64) -> u64 {
        self.runs(start).iter().find(|run| run.0 == addr && !run.2).map_or(0, |run| run.1)
    }

    /// Where to put `bytes` so that pages at the lowest address are mapped: the beginning of the
    /// first gap that is large enough. A gap begins with a run without memory, or with a free run
    /// before it.
    pub(super) fn first_growing_gap(&self, start: u64, bytes: u64) -> Option<u64> {
        let free = self.free_runs(start);
        for (hole, _, _) in self.runs(start).into_iter().filter(|run| !run.2) {
            let from = free.iter().find(|run| run.0 + run.1 == hole).map_or(hole, |run| run.0);
            let end = self.blocks.range(from..).next().map_or(start + self.bytes, |(addr, _)| *addr);
            if end - from >= bytes {
                return Some(from);
            }
        }
        None
    }

    /// Runs of pages without memory that `bytes` at `addr` touch. Each ends with the last page that
    /// is needed.
    pub(super) fn missing_pages(&self, start: u64, addr: u64, bytes: u64) -> Vec<(u64, u64)> {
        let page = self.page_bytes.expect("an expandable segment");
        let end = (addr + bytes - start).div_ceil(page) * page + start;
        let holes = self.runs(start).into_iter().filter(|run| !run.2 && run.0 < end && run.0 + run.1 > addr);
        holes.map(|(hole, len, _)| (hole, (hole + len).min(end) - hole)).collect()
    }

    pub(super) fn map(&mut self, start: u64, addr: u64, bytes: u64) {
        let page = self.page_bytes.expect("an expandable segment");
        self.mapped.extend((addr - start) / page..(addr + bytes - start) / page);
    }

    /// Removes the memory of all pages that lie in free runs; returns them run by run.
    pub(super) fn unmap_free_pages(&mut self, start: u64) -> Vec<(u64, u64)> {
        let Some(page) = self.page_bytes else { return Vec::new() };
        let mut unmapped = Vec::new();
        for (addr, bytes) in self.free_runs(start) {
            let (first, end) = ((addr - start).div_ceil(page), (addr + bytes - start) / page);
            if first < end {
                unmapped.push((start + first * page, (end - first) * page));
                self.mapped.retain(|number| !(first..end).contains(number));
            }
        }
        unmapped
    }

    /// Bytes of the whole segment, or of the whole pages, in a free run.
    pub(super) fn whole_bytes(&self, start: u64, addr: u64, bytes: u64) -> u64 {
        let unit = self.page_bytes.unwrap_or(self.bytes);
        let (first, end) = ((addr - start).div_ceil(unit), (addr + bytes - start) / unit);
        end.saturating_sub(first) * unit
    }

    /// Whether it is a segment without a block.
    pub(super) fn is_idle_segment(&self) -> bool {
        self.page_bytes.is_none() && self.blocks.is_empty()
    }
}
