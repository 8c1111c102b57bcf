//! Takes the snapshots and gap observations that are due.
//!
//! A snapshot visits the sites and, with PyTorch, the live blocks of every device.

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, NO_DEVICE};

use super::ReplayPass;
use crate::callsite::symbols::StackSymbols;
use crate::device::{DeviceState, GapRequest};
use crate::event_analysis::EventTime;
use crate::pass::snapshot_schedule::{DeviceSnapshot, SnapshotRecord};
use crate::state::driver::MemoryRange;
use crate::timeline::time_spec::TimeSpec;
use crate::util::block_totals::saturating_sum;

impl ReplayPass {
    /// Applies a slice in which something is due, and splits it there. Times are slightly out of
    /// order, so each event is compared.
    #[inline(never)] // Few slices have something due.
    pub(super) fn on_slice_with_snapshots(&mut self, mut events: &[Event]) {
        while !events.is_empty() {
            let next_ns = self.schedule.next_ns();
            let until_gap = self.schedule.gaps.events_until_due().min(events.len() as u64) as usize;
            let snapshot = events[..until_gap].iter().position(|event| event.time_ns > next_ns);
            let (before, after) = events.split_at(snapshot.unwrap_or(until_gap));
            self.on_slice_in_scope(before);
            if self.schedule.gaps.events_until_due() == 0 {
                self.observe_gaps();
            }
            if let Some(next) = after.first() {
                let due = self.schedule.take_due_before(next.time_ns);
                self.take_snapshots(&due);
            }
            events = after;
        }
    }

    /// Records a snapshot of the present state for each of `due`.
    pub(super) fn take_snapshots(&mut self, due: &[TimeSpec]) {
        let (time, symbols, ranges) = (self.now(), &self.symbols, self.driver.ranges());
        for spec in due {
            let devices = (0..=u8::MAX).zip(&mut self.devices.all);
            let devices = devices.filter(|(ordinal, _)| *ordinal != NO_DEVICE);
            let devices = devices.filter_map(|(ordinal, device)| {
                Some((ordinal, snapshot_of_device(ordinal, device.as_mut()?, time, symbols, ranges)))
            });
            let devices = devices.collect();
            self.snapshots.push(SnapshotRecord { spec: spec.clone(), time, devices });
        }
    }

    /// Adds the present gap of each device to its history, if there are not too many live blocks.
    fn observe_gaps(&mut self) {
        let (time, ranges) = (self.now(), self.driver.ranges());
        let visits = self.devices.all.iter().flatten().map(|device| device.count_gap_visits(ranges));
        let due = self.schedule.gaps.take_due(saturating_sum(visits));
        let symbols = &self.symbols;
        for (device, ordinal) in self.devices.all.iter_mut().zip(0..=u8::MAX) {
            if let Some(device) = device {
                let site_of = |stack| symbols.stack_info(stack).site;
                device.observe_gap(due, time, ranges, ordinal, site_of);
            }
        }
    }
}

fn snapshot_of_device(
    ordinal: u8,
    device: &mut DeviceState,
    time: EventTime,
    symbols: &StackSymbols,
    ranges: &BTreeMap<u64, MemoryRange>,
) -> DeviceSnapshot {
    let live_set = device.main();
    let mut sites: Vec<_> =
        live_set.sites().map(|(id, site)| (id, site.now())).filter(|(_, live)| live.bytes > 0).collect();
    sites.sort_by_key(|(id, live)| (std::cmp::Reverse(live.bytes), *id));
    let live = live_set.total().bytes;
    let gap = device.has_torch().then(|| {
        let site_of = |stack| symbols.stack_info(stack).site;
        let pool = device.most_requested_pool();
        let request =
            GapRequest { time_ns: time.time_ns, reserved: device.reserved, pool, has_failed: false };
        device.explain_gap(request, ranges, ordinal, site_of)
    });
    DeviceSnapshot {
        time,
        has_torch: device.has_torch(),
        live,
        reserved: device.reserved,
        device_bytes: device.driver.total().bytes,
        sites,
        gap,
    }
}
