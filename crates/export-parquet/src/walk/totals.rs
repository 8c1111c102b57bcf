//! Totals by step and by call site while the events are walked.
//!
//! The memory of each call site at the peak is known without a copy of the live set. A site notes
//! its value lazily, at its first change after the peak last rose.

use gpumemtrace_replay::report::{BlockChange, BlockLayer, WalkedBlock};

/// The allocator and the device of a block.
pub(crate) type LayerOnDevice = (BlockLayer, u8);

/// Number and bytes of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveAmount {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

impl LiveAmount {
    fn add(&mut self, block: &WalkedBlock) {
        self.blocks += 1;
        // Sizes of a damaged trace may sum up to more than 64 bits.
        self.bytes = self.bytes.saturating_add(block.size_bytes);
    }

    fn subtract(&mut self, block: &WalkedBlock) {
        self.blocks = self.blocks.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(block.size_bytes);
    }
}

/// The blocks of one call site.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SiteAmounts {
    pub(crate) allocated: LiveAmount,
    pub(crate) freed: LiveAmount,
    pub(crate) live: LiveAmount,
    /// Live blocks at the peak of the layer, if `noted_peak` is that peak's number.
    pub(crate) at_peak: LiveAmount,
    noted_peak: u64,
}

impl SiteAmounts {
    /// Notes the value at the latest peak, if the site did not change since.
    fn settle(&mut self, peak: u64) {
        if self.noted_peak != peak {
            (self.at_peak, self.noted_peak) = (self.live, peak);
        }
    }
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepTotals {
    pub(crate) allocated: LiveAmount,
    pub(crate) freed: LiveAmount,
    pub(crate) peak_bytes: u64,
    /// When they were reached first; `None` if they were live when the step began.
    pub(crate) peak_ns: Option<u64>,
    /// The sequence number of the event that reached them.
    pub(crate) peak_seq: Option<u64>,
    pub(crate) end: LiveAmount,
}

/// The blocks of one allocator on one device.
#[derive(Debug, Default)]
pub(crate) struct AllocatorTotals {
    live: LiveAmount,
    peak_bytes: u64,
    /// Counts how often `peak_bytes` rose.
    peak: u64,
    step: StepTotals,
    sites: Vec<SiteAmounts>,
    /// Blocks without a known site.
    unknown_site: SiteAmounts,
}

impl AllocatorTotals {
    fn site(&mut self, site: u32) -> &mut SiteAmounts {
        if site == u32::MAX {
            return &mut self.unknown_site;
        }
        let index = site as usize;
        if index >= self.sites.len() {
            self.sites.resize(index + 1, SiteAmounts::default());
        }
        &mut self.sites[index]
    }

    fn on_allocated(&mut self, block: &WalkedBlock, counts: bool) {
        let peak = self.peak;
        let site = self.site(block.site);
        site.settle(peak);
        site.live.add(block);
        if counts {
            site.allocated.add(block);
            self.step.allocated.add(block);
        }
        self.live.add(block);
        if self.live.bytes > self.step.peak_bytes {
            self.step.peak_bytes = self.live.bytes;
            (self.step.peak_ns, self.step.peak_seq) = (Some(block.time_ns), Some(block.seq));
        }
        if self.live.bytes > self.peak_bytes {
            self.peak_bytes = self.live.bytes;
            self.peak += 1;
        }
    }

    fn on_ended(&mut self, block: &WalkedBlock, counts: bool) {
        let peak = self.peak;
        let site = self.site(block.site);
        site.settle(peak);
        site.live.subtract(block);
        if counts {
            site.freed.add(block);
            self.step.freed.add(block);
        }
        self.live.subtract(block);
    }

    /// Forgets what was before the window, except for the live blocks.
    fn begin_window(&mut self) {
        self.peak_bytes = self.live.bytes;
        self.peak += 1;
        self.step = StepTotals { peak_bytes: self.live.bytes, ..StepTotals::default() };
    }

    fn take_step(&mut self) -> StepTotals {
        let next = StepTotals { peak_bytes: self.live.bytes, ..StepTotals::default() };
        StepTotals { end: self.live, ..std::mem::replace(&mut self.step, next) }
    }

    /// The totals of all sites with blocks; the number is `None` for the unknown site.
    pub(crate) fn into_sites(self) -> impl Iterator<Item = (Option<u32>, SiteAmounts)> {
        let peak = self.peak;
        let known = (0..).map(Some).zip(self.sites);
        known.chain([(None, self.unknown_site)]).filter_map(move |(number, mut site)| {
            site.settle(peak);
            let has_blocks =
                [site.allocated, site.freed, site.live, site.at_peak].iter().any(|sum| sum.blocks > 0);
            has_blocks.then_some((number, site))
        })
    }
}

/// The blocks of all allocators, by allocator and device.
#[derive(Debug, Default)]
pub(crate) struct StepAndSiteTotals {
    layers: Vec<(LayerOnDevice, AllocatorTotals)>,
    is_inside: bool,
}

impl StepAndSiteTotals {
    /// Begins to count. Before, changes only say what is live.
    pub(crate) fn begin_window(&mut self) {
        self.is_inside = true;
        self.layers.iter_mut().for_each(|(_, layer)| layer.begin_window());
    }

    #[inline]
    pub(crate) fn on_change(&mut self, change: &BlockChange) {
        let counts = self.is_inside;
        match change {
            BlockChange::Allocated(block) => self.layer(block).on_allocated(block, counts),
            BlockChange::Freed(block) => self.layer(block).on_ended(block, counts),
            BlockChange::Lost(block) => self.layer(block).on_ended(block, false),
        }
    }

    fn layer(&mut self, block: &WalkedBlock) -> &mut AllocatorTotals {
        let key = (block.layer, block.device);
        // There are few layers, and nearly all blocks are of the first.
        let index = self.layers.binary_search_by_key(&key, |(key, _)| *key).unwrap_or_else(|index| {
            self.layers.insert(index, (key, AllocatorTotals::default()));
            index
        });
        &mut self.layers[index].1
    }

    /// The totals of the step that ends, by layer and device.
    pub(crate) fn take_step(&mut self) -> impl Iterator<Item = (LayerOnDevice, StepTotals)> {
        self.layers.iter_mut().map(|(key, layer)| (*key, layer.take_step()))
    }

    /// All totals, by layer and device.
    pub(crate) fn into_layers(self) -> Vec<(LayerOnDevice, AllocatorTotals)> {
        self.layers
    }
}

#[cfg(test)]
mod tests;
