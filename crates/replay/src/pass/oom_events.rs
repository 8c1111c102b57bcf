//! Records of out-of-memory events.
//!
//! PyTorch's native allocator reports its own. Under `backend:cudaMallocAsync` and without caching
//! each block is a driver call; there, a call for PyTorch that the driver refuses is such an event.
//! PyTorch may repeat that call once, which counts as the same event. Where the trace does not say
//! that each block is a driver call, PyTorch may free its cache and go on, so a refused call counts
//! as nothing. The same holds for the allocator of another library that PyTorch uses
//! ([`super::failed_calls`]).
//!
//! All are counted. The first [`MAX_OOMS`] are recorded with the gap and the largest sites at that
//! moment, which visits every live block of the device.

use std::collections::BTreeMap;

use gpumemtrace_format::Event;

use super::oom_growth::{StackAtOom, measure_growth};
use super::records::PresentState;
use crate::device::GapRequest;
use crate::device::device_states::{DeviceStates, device_of};
use crate::device::keyframes::KeyframeReason;
use crate::event_analysis::EventTime;
use crate::fragmentation::Gap;
use crate::state::live_set::LiveSet;
use crate::state::pool_key::{PoolKey, segment_bytes};
use crate::util::block_totals::BlockTotals;
use crate::util::ids::{SiteId, StackId};

/// Limit of recorded out-of-memory events.
pub(crate) const MAX_OOMS: usize = 64;
/// Limit of the sites recorded with an out-of-memory event.
const MAX_OOM_SITES: usize = 10;

/// An out-of-memory event and the state of its device.
#[derive(Debug)]
pub(crate) struct OomRecord {
    pub event: Event,
    /// The stack of the failed request.
    pub stack: StackId,
    /// Number of steps begun.
    pub step: u32,
    /// Bytes in live blocks.
    pub live: u64,
    /// Bytes allocated from the driver.
    pub device_bytes: u64,
    /// The gap between reserved and allocated memory.
    pub gap: Gap,
    /// The sites with the most live bytes, most first.
    pub sites: Vec<(SiteId, BlockTotals)>,
    /// The live blocks by stack and age.
    pub growth: Vec<StackAtOom>,
    /// Bytes of segments and pages by the stacks of the blocks in them; `None` if they are unknown.
    pub units: Option<BTreeMap<Vec<StackId>, u64>>,
    /// Number of blocks that the device's stacks had allocated.
    pub allocated: u64,
    /// The highest allocated bytes of a step before this one, with the step.
    pub earlier_peak: Option<(u32, u64)>,
    /// Least memory of the device outside recorded calls up to then; `None` if it was not sampled.
    pub residual: Option<u64>,
    /// The driver refused a block of PyTorch, which has no segments.
    pub is_of_driver: bool,
}

impl OomRecord {
    /// Free bytes of the device that the request needs: for its segment, or for the block itself.
    pub(crate) fn needed_bytes(&self) -> u64 {
        let requested = self.event.size;
        if self.is_of_driver { requested } else { segment_bytes(requested) }
    }

    /// What the driver had free for the process, of the `free` bytes that recorded calls left.
    /// PyTorch reports what the driver said (`OutOfMemoryObserver`), which other processes limit.
    pub(crate) fn driver_free_bytes(&self, free: u64) -> u64 {
        let left = free.saturating_sub(self.residual.unwrap_or(0));
        if self.is_of_driver || self.event.detail.is_none() { left } else { left.min(self.event.addr) }
    }

    /// True if the request grows an expandable segment, of which it needs only the missing pages.
    pub(crate) fn grows_segment(&self) -> bool {
        self.gap.groups.iter().any(|group| group.is_expandable && Some(group.pool) == self.gap.request)
    }
}

/// The out-of-memory events of the analysed part of the run.
#[derive(Default)]
pub(super) struct OomLog {
    /// The first [`MAX_OOMS`], in order.
    pub(super) records: Vec<OomRecord>,
    /// Number of all events, recorded or not.
    pub(super) count: u64,
    /// The same number by device.
    pub(super) counts: BTreeMap<u8, u64>,
}

impl OomLog {
    /// Counts an out-of-memory event of a device in step `step`.
    pub(super) fn count_oom(&mut self, ordinal: u8, step: u32, devices: &mut DeviceStates) {
        self.count += 1;
        *self.counts.entry(ordinal).or_default() += 1;
        let device = devices.all[usize::from(ordinal)].as_mut();
        if let Some(history) = device.and_then(|device| device.torch.history_mut()) {
            history.classes.on_oom(step);
        }
    }

    /// Takes back `count` of them.
    fn uncount_ooms(&mut self, device: u8, count: u64) {
        self.count = self.count.saturating_sub(count);
        let of_device = self.counts.entry(device).or_default();
        *of_device = of_device.saturating_sub(count);
    }

    /// The last record, if it is that of the event with this sequence number.
    pub(super) fn last_mut(&mut self, seq: u64) -> Option<&mut OomRecord> {
        self.records.last_mut().filter(|last| last.event.seq == seq)
    }

    /// Takes back the last record, if it is that of the event with this sequence number.
    pub(super) fn withdraw_last(&mut self, seq: u64, device: u8) {
        if self.last_mut(seq).is_some() {
            self.records.pop();
            self.uncount_ooms(device, 1);
        }
    }

    /// Counts and records an out-of-memory event.
    pub(super) fn on_oom(&mut self, event: &Event, stack: StackId, present: &mut PresentState<'_>) {
        let PresentState { accounts, symbols, now, has_steps } = present;
        self.forget_ooms_of_driver(event.device);
        self.count_oom(event.device, now.step, &mut accounts.devices);
        if self.records.len() >= MAX_OOMS {
            return;
        }
        let device = device_of(&mut accounts.devices, event.device, now.step);
        let ranges = accounts.driver.ranges();
        let pool = event.detail.map(|detail| PoolKey::of_request(detail, event.size));
        let request = GapRequest { time_ns: event.time_ns, reserved: event.aux[1], pool, has_failed: true };
        let site_of = |stack| symbols.stack_info(stack).site;
        let time = EventTime { time_ns: event.time_ns, step: now.step };
        device.keep_state(KeyframeReason::OutOfMemory, time, ranges, event.device);
        let gap = device.explain_gap(request, ranges, event.device, site_of);
        self.records.push(OomRecord {
            event: *event,
            stack,
            step: now.step,
            live: device.torch.total().bytes,
            device_bytes: device.driver.total().bytes,
            gap,
            sites: largest_sites(&device.torch),
            units: device.units_by_stacks(request, ranges, event.device),
            growth: measure_growth(&device.torch, *has_steps),
            earlier_peak: device.torch.peak_of_earlier_steps(),
            allocated: device.torch.allocated(),
            residual: device.attribution.extremes.map(|(least, _)| least),
            is_of_driver: false,
        });
    }

    /// PyTorch reports its errors itself, so the calls that the driver refused were for segments.
    fn forget_ooms_of_driver(&mut self, device: u8) {
        let before = self.records.len();
        self.records.retain(|record| !record.is_of_driver || record.event.device != device);
        self.uncount_ooms(device, (before - self.records.len()) as u64);
    }

    /// Counts and records a driver call for a block of PyTorch that failed for lack of memory.
    pub(super) fn on_oom_of_driver(&mut self, event: &Event, stack: StackId, present: &mut PresentState<'_>) {
        let PresentState { accounts, symbols, now, has_steps } = present;
        let device = device_of(&mut accounts.devices, event.device, now.step);
        let allocated = device.driver.allocated();
        // The second call comes from another place in PyTorch's code.
        let site = symbols.stack_info(stack).site;
        let is_repeated = self.records.last().is_some_and(|last| {
            (last.event.device, last.event.size, last.allocated) == (event.device, event.size, allocated)
                && symbols.stack_info(last.stack).site == site
        });
        if is_repeated {
            return;
        }
        let live = device.driver.total().bytes;
        let growth = measure_growth(&device.driver, *has_steps);
        // Each block is a unit of its own: its free returns it to the driver.
        let units = growth.iter().map(|one| (vec![one.stack], one.held.bytes)).collect();
        let record = OomRecord {
            event: Event { aux: [event.aux[0], live], ..*event },
            stack,
            step: now.step,
            live,
            device_bytes: live,
            gap: Gap::default(),
            sites: largest_sites(&device.driver),
            growth,
            units: Some(units),
            earlier_peak: device.driver.peak_of_earlier_steps(),
            allocated,
            residual: device.attribution.extremes.map(|(least, _)| least),
            is_of_driver: true,
        };
        self.count_oom(event.device, now.step, &mut accounts.devices);
        if self.records.len() < MAX_OOMS {
            self.records.push(record);
        }
    }
}

/// The sites with the most live bytes, most first.
fn largest_sites(live: &LiveSet) -> Vec<(SiteId, BlockTotals)> {
    let sites = live.sites().map(|(id, site)| (id, site.now()));
    let mut sites: Vec<_> = sites.filter(|(_, live)| live.bytes > 0).collect();
    sites.sort_by_key(|(id, live)| (std::cmp::Reverse(live.bytes), *id));
    sites.truncate(MAX_OOM_SITES);
    sites
}
