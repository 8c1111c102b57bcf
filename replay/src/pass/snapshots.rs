//! The moments at which the pass stops to look around: those that were asked for, and the looks at the gap.

use gpumemtrace_format::{Event, NO_DEVICE};

use super::ReplayPass;
use crate::pass::snapshot_schedule::{DeviceSnapshot, SnapshotRecord};
use crate::state::device::DeviceState;
use crate::timeline::time_spec::TimeSpec;

impl ReplayPass {
    /// Events among which an alarm may be due: times are a little out of order, so each is asked.
    #[inline(never)] // Seldom.
    pub(super) fn on_slice_with_snapshots(&mut self, mut events: &[Event]) {
        loop {
            let alarm_ns = self.schedule.next_ns();
            let Some(at) = events.iter().position(|event| event.time_ns > alarm_ns) else { break };
            let (before, after) = events.split_at(at);
            self.on_slice(before);
            let time_ns = after[0].time_ns;
            let come = self.schedule.due_at(time_ns);
            self.take_snapshots(&come);
            if self.schedule.is_gap_due(time_ns) {
                self.observe_gaps();
            }
            events = after;
        }
        self.on_slice(events);
    }

    /// What is the case now, for each moment that has come.
    pub(super) fn take_snapshots(&mut self, come: &[TimeSpec]) {
        for asked in come {
            let devices = (0..=u8::MAX).zip(&self.devices.all);
            let devices = devices.filter(|(ordinal, _)| *ordinal != NO_DEVICE);
            let devices = devices.filter_map(|(ordinal, device)| {
                Some((ordinal, self.snapshot_of_device(ordinal, device.as_ref()?)))
            });
            let devices = devices.collect();
            self.snapshots.push(SnapshotRecord {
                asked: asked.clone(),
                time_ns: self.time_ns,
                step: self.step,
                devices,
            });
        }
    }

    fn snapshot_of_device(&self, ordinal: u8, device: &DeviceState) -> DeviceSnapshot {
        let live_set = device.main();
        let mut sites: Vec<_> =
            live_set.sites().map(|(id, site)| (id, site.now())).filter(|(_, held)| held.bytes > 0).collect();
        sites.sort_by_key(|(id, held)| (std::cmp::Reverse(held.bytes), *id));
        let gap = device.has_torch().then(|| {
            let site_of = |stack| self.symbols.stack_info(stack).site;
            let moment = (self.time_ns, device.reserved, device.most_requested_pool());
            device.gap(moment, self.driver.ranges(), ordinal, site_of)
        });
        DeviceSnapshot {
            has_torch: device.has_torch(),
            live: live_set.total().bytes,
            reserved: device.reserved,
            device_bytes: device.driver.total().bytes,
            sites,
            gap,
        }
    }

    fn observe_gaps(&mut self) {
        let when = (self.time_ns, self.step);
        let symbols = &self.symbols;
        for (device, ordinal) in self.devices.all.iter_mut().zip(0..=u8::MAX) {
            if let Some(device) = device {
                let site_of = |stack| symbols.stack_info(stack).site;
                device.observe_gap(when, self.driver.ranges(), ordinal, site_of);
            }
        }
    }
}
