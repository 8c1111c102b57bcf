//! What each call site allocated in a window, and its live memory at the peak and at the end.
//!
//! The peak is known only when it has passed. Each total keeps its value at the last peak so far,
//! and copies it at its first change after that peak, so an event costs the same at any peak.

use std::collections::hash_map::{Entry, HashMap};
use std::ops::ControlFlow;

use gpumemtrace_replay::report::{BlockLayer, WalkedBlock};

use crate::export::ExportRun;
use crate::export::series::change_parts;

/// Bytes and blocks of a call site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryTotal {
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

impl MemoryTotal {
    fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks += 1;
    }

    fn remove(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.blocks = self.blocks.saturating_sub(1);
    }
}

/// The memory of one call site on one device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SiteTotals {
    /// A stack of the site, which tells its place.
    pub(super) stack: u32,
    /// Live at the device's peak in the window.
    pub(super) at_peak: MemoryTotal,
    /// Live at the end of the window.
    pub(super) at_end: MemoryTotal,
    /// Allocated in the window, whether freed or not.
    pub(super) allocated: MemoryTotal,
    /// Number of the peak at which `at_peak` was copied.
    peak: u64,
}

/// A layer of a device.
pub(super) type LayerKey = (BlockLayer, u8);

/// The call sites of one layer of a device, by number.
#[derive(Debug, Default)]
struct LayerSites {
    live: MemoryTotal,
    most_bytes: u64,
    /// Number of the last peak.
    peak: u64,
    sites: HashMap<u32, SiteTotals>,
}

impl LayerSites {
    /// The site of a block, with its value at the last peak copied.
    fn site(&mut self, block: &WalkedBlock) -> &mut SiteTotals {
        let peak = self.peak;
        match self.sites.entry(block.site) {
            Entry::Occupied(entry) => {
                let site = entry.into_mut();
                if site.peak != peak {
                    (site.at_peak, site.peak) = (site.at_end, peak);
                }
                site
            }
            Entry::Vacant(entry) => {
                entry.insert(SiteTotals { stack: block.stack, peak, ..SiteTotals::default() })
            }
        }
    }

    fn allocate(&mut self, block: &WalkedBlock, is_inside: bool) {
        let site = self.site(block);
        site.at_end.add(block.size_bytes);
        if is_inside {
            site.allocated.add(block.size_bytes);
        }
        self.live.add(block.size_bytes);
    }

    fn free(&mut self, block: &WalkedBlock) {
        self.site(block).at_end.remove(block.size_bytes);
        self.live.remove(block.size_bytes);
    }

    /// Makes the present state the peak if it has more bytes than any before.
    fn note_peak(&mut self) {
        if self.live.bytes > self.most_bytes {
            self.most_bytes = self.live.bytes;
            self.peak += 1;
        }
    }

    /// Makes the present state the peak.
    fn restart_peak(&mut self) {
        self.most_bytes = self.live.bytes;
        self.peak += 1;
    }

    /// The sites that had memory in the window, those with the most bytes at the peak first.
    fn into_sites(mut self) -> Vec<SiteTotals> {
        for site in self.sites.values_mut() {
            if site.peak != self.peak {
                site.at_peak = site.at_end;
            }
        }
        let is_used =
            |site: &SiteTotals| site.at_peak.blocks + site.at_end.blocks + site.allocated.blocks > 0;
        let mut sites: Vec<SiteTotals> = self.sites.into_values().filter(is_used).collect();
        // Stacks are numbered equally in every walk.
        sites.sort_unstable_by_key(|site| {
            (std::cmp::Reverse((site.at_peak.bytes, site.at_end.bytes, site.allocated.bytes)), site.stack)
        });
        sites
    }
}

/// The layers of all devices. A run has few.
#[derive(Default)]
struct LayerTable {
    all: Vec<(LayerKey, LayerSites)>,
}

impl LayerTable {
    fn of_block(&mut self, block: &WalkedBlock) -> &mut LayerSites {
        let key = (block.layer, block.device);
        let index = self.all.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
            self.all.push((key, LayerSites::default()));
            self.all.len() - 1
        });
        &mut self.all[index].1
    }
}

/// Walks the window of a run; returns the sites of each layer of each device.
pub(super) fn read_site_totals(run: &mut ExportRun) -> anyhow::Result<Vec<(LayerKey, Vec<SiteTotals>)>> {
    let mut layers = LayerTable::default();
    let mut was_inside = false;
    run.walk(&mut |walked| {
        if walked.is_inside && !was_inside {
            // The window begins with the memory that is live then.
            layers.all.iter_mut().for_each(|(_, layer)| layer.restart_peak());
            was_inside = true;
        }
        for change in walked.changes {
            let (block, is_alloc) = change_parts(change);
            let layer = layers.of_block(block);
            if is_alloc { layer.allocate(block, walked.is_inside) } else { layer.free(block) }
        }
        if walked.is_inside {
            for change in walked.changes {
                let block = change_parts(change).0;
                layers.of_block(block).note_peak();
            }
        }
        ControlFlow::Continue(())
    })?;
    layers.all.sort_unstable_by_key(|(key, _)| *key);
    Ok(layers.all.into_iter().map(|(key, layer)| (key, layer.into_sites())).collect())
}
