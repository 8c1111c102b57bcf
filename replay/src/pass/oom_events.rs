//! What is kept of each time memory ran out: the first [`MAX_OOMS`] are described.

use gpumemtrace_format::Event;

use super::ReplayPass;
use crate::callsite::symbols::{SiteId, StackId};
use crate::fragmentation::{Gap, PoolKey};
use crate::state::device_states::device_of;
use crate::util::block_totals::BlockTotals;

/// Most out-of-memory events described one by one.
pub(crate) const MAX_OOMS: usize = 64;
/// Sites listed with an out-of-memory event.
const OOM_SITES: usize = 10;

/// An out-of-memory event.
#[derive(Debug)]
pub(crate) struct OomRecord {
    /// The event.
    pub event: Event,
    /// From where.
    pub stack: StackId,
    /// Steps begun.
    pub step: u32,
    /// Sum of live blocks then.
    pub live: u64,
    /// Driver memory then.
    pub device_bytes: u64,
    /// The gap then.
    pub gap: Gap,
    /// What filled the device.
    pub sites: Vec<(SiteId, BlockTotals)>,
}

impl ReplayPass {
    pub(super) fn on_oom(&mut self, event: &Event, stack: StackId) {
        self.count_oom(event);
        if self.ooms.len() >= MAX_OOMS {
            return;
        }
        let step = self.step;
        let symbols = &self.symbols;
        let device = device_of(&mut self.devices, event.device, step);
        let request = event.detail.map(|detail| PoolKey::of_request(detail, event.size));
        let moment = (event.time_ns, event.aux[1], request);
        let site_of = |stack| symbols.stack_info(stack).site;
        let gap = device.gap(moment, self.driver.ranges(), event.device, site_of);
        let mut sites: Vec<(SiteId, BlockTotals)> = device
            .torch
            .sites()
            .map(|(id, live_set)| (id, live_set.now()))
            .filter(|(_, held)| held.bytes > 0)
            .collect();
        sites.sort_by_key(|(id, held)| (std::cmp::Reverse(held.bytes), *id));
        sites.truncate(OOM_SITES);
        let record = OomRecord {
            event: *event,
            stack,
            step,
            live: device.torch.total().bytes,
            device_bytes: device.driver.total().bytes,
            gap,
            sites,
        };
        self.ooms.push(record);
    }
}
