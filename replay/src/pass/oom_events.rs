//! What is kept of each time memory ran out: the first [`MAX_OOMS`] are described.

use gpumemtrace_format::Event;

use super::Pass;
use crate::callsite::symbols::{SiteId, StackId};
use crate::fragmentation::{Gap, Serves};
use crate::state::device::device_of;
use crate::state::live_set::lazy_counter::Held;

/// Most out-of-memory events described one by one.
pub const MAX_OOMS: usize = 64;
/// Sites listed with an out-of-memory event.
const OOM_SITES: usize = 10;

/// An out-of-memory event.
#[derive(Debug)]
pub struct OomRecord {
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
    pub sites: Vec<(SiteId, Held)>,
}

impl Pass {
    pub(super) fn oom(&mut self, event: &Event, stack: StackId) {
        self.count_oom(event);
        if self.ooms.len() >= MAX_OOMS {
            return;
        }
        let step = self.step;
        let symbols = &self.symbols;
        let device = device_of(&mut self.devices, event.device, step);
        let wanted = event.detail.map(|detail| Serves::request(detail, event.size));
        let moment = (event.time_ns, event.aux[1], wanted);
        let site_of = |stack| symbols.facts(stack).site;
        let gap = device.gap(moment, self.driver.ranges(), event.device, site_of);
        let mut sites: Vec<(SiteId, Held)> = device
            .torch
            .sites()
            .map(|(id, book)| (id, book.now()))
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
