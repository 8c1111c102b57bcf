//! The moments at which the pass stops to look around: those that were asked for, and the looks at the gap.

use gpumemtrace_format::{Event, NO_DEVICE};

use super::Pass;
use crate::pass::snapshot_schedule::{Instant, OnDeviceAt};
use crate::state::device::DeviceState;
use crate::timeline::time_spec::When;

impl Pass {
    /// Events among which an alarm may be due: times are a little out of order, so each is asked.
    #[inline(never)] // Seldom.
    pub(super) fn events_and_alarms(&mut self, mut events: &[Event]) {
        loop {
            let alarm_ns = self.alarms.next_ns();
            let Some(at) = events.iter().position(|event| event.time_ns > alarm_ns) else { break };
            let (before, after) = events.split_at(at);
            self.events_in_a_row(before);
            let time_ns = after[0].time_ns;
            let come = self.alarms.come(time_ns);
            self.take_instants(&come);
            if self.alarms.is_time_to_look(time_ns) {
                self.look_at_gaps();
            }
            events = after;
        }
        self.events_in_a_row(events);
    }

    /// What is the case now, for each moment that has come.
    pub(super) fn take_instants(&mut self, come: &[When]) {
        for asked in come {
            let devices = (0..=u8::MAX).zip(&self.devices.all);
            let devices = devices.filter(|(ordinal, _)| *ordinal != NO_DEVICE);
            let devices = devices.filter_map(|(ordinal, device)| {
                Some((ordinal, self.at_this_moment(ordinal, device.as_ref()?)))
            });
            let devices = devices.collect();
            self.instants.push(Instant {
                asked: asked.clone(),
                time_ns: self.time_ns,
                step: self.step,
                devices,
            });
        }
    }

    fn at_this_moment(&self, ordinal: u8, device: &DeviceState) -> OnDeviceAt {
        let book = device.main();
        let mut sites: Vec<_> =
            book.sites().map(|(id, site)| (id, site.now())).filter(|(_, held)| held.bytes > 0).collect();
        sites.sort_by_key(|(id, held)| (std::cmp::Reverse(held.bytes), *id));
        let gap = device.has_torch().then(|| {
            let site_of = |stack| self.symbols.facts(stack).site;
            let moment = (self.time_ns, device.reserved, device.usually_wanted());
            device.gap(moment, self.driver.ranges(), ordinal, site_of)
        });
        OnDeviceAt {
            has_torch: device.has_torch(),
            live: book.total().bytes,
            reserved: device.reserved,
            device_bytes: device.driver.total().bytes,
            sites,
            gap,
        }
    }

    fn look_at_gaps(&mut self) {
        let when = (self.time_ns, self.step);
        let symbols = &self.symbols;
        for (device, ordinal) in self.devices.all.iter_mut().zip(0..=u8::MAX) {
            if let Some(device) = device {
                let site_of = |stack| symbols.facts(stack).site;
                device.look_at_gap(when, self.driver.ranges(), ordinal, site_of);
            }
        }
    }
}
