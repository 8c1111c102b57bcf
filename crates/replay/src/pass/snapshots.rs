//! Takes the snapshots and gap observations that are due.
//!
//! A snapshot visits the sites and, with PyTorch, the live blocks of every device.

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, NO_DEVICE};

use super::ReplayPass;
use super::records::{PresentState, Records};
use crate::callsite::symbols::StackSymbols;
use crate::device::{DeviceState, GapRequest};
use crate::event_analysis::EventTime;
use crate::pass::snapshot_schedule::{DeviceSnapshot, SnapshotRecord, SnapshotSchedule};
use crate::state::driver::MemoryRange;
use crate::timeline::time_spec::TimeSpec;
use crate::util::block_totals::saturating_sum;

/// The snapshots so far, and those to come.
pub(super) struct SnapshotLog {
    pub(super) schedule: SnapshotSchedule,
    taken: Vec<SnapshotRecord>,
}

impl SnapshotLog {
    pub(super) fn new(schedule: SnapshotSchedule) -> Self {
        Self { schedule, taken: Vec::new() }
    }

    /// Records a snapshot of the present state for each of `due`.
    pub(super) fn take(&mut self, due: &[TimeSpec], present: &mut PresentState<'_>) {
        let (time, symbols, ranges) = (present.now, present.symbols, present.accounts.driver.ranges());
        for spec in due {
            let devices = (0..=u8::MAX).zip(&mut present.accounts.devices.all);
            let devices = devices.filter(|(ordinal, _)| *ordinal != NO_DEVICE);
            let devices = devices.filter_map(|(ordinal, device)| {
                Some((ordinal, snapshot_of_device(ordinal, device.as_mut()?, time, symbols, ranges)))
            });
            let devices = devices.collect();
            self.taken.push(SnapshotRecord { spec: spec.clone(), time, devices });
        }
    }

    /// Adds the present gap of each device to its history, if there are not too many live blocks.
    fn observe_gaps(&mut self, present: &mut PresentState<'_>) {
        let (time, symbols, ranges) = (present.now, present.symbols, present.accounts.driver.ranges());
        let devices = &mut present.accounts.devices.all;
        let visits = devices.iter().flatten().map(|device| device.count_gap_visits(ranges));
        let due = self.schedule.gaps.take_due(saturating_sum(visits));
        for (device, ordinal) in devices.iter_mut().zip(0..=u8::MAX) {
            if let Some(device) = device {
                let site_of = |stack| symbols.stack_info(stack).site;
                device.observe_gap(due, time, ranges, ordinal, site_of);
            }
        }
    }

    /// All snapshots by time, with those of the finished devices at their peaks and at `end`.
    pub(super) fn finish(&mut self, devices: &[(u8, DeviceState)], end: EventTime) -> Vec<SnapshotRecord> {
        let mut all = std::mem::take(&mut self.taken);
        let after_run = self.schedule.take_due_after_run().into_iter();
        all.extend(after_run.map(|spec| snapshot_after_run(spec, devices, end)));
        all.sort_by_key(|snapshot| snapshot.time.time_ns);
        all
    }
}

impl ReplayPass {
    /// Applies a slice in which something is due, and splits it there. Times are slightly out of
    /// order, so each event is compared.
    #[inline(never)] // Few slices have something due.
    pub(super) fn on_slice_with_snapshots(&mut self, mut events: &[Event]) {
        while !events.is_empty() {
            let schedule = &self.records.snapshots.schedule;
            let next_ns = schedule.next_ns();
            let until_gap = schedule.gaps.events_until_due().min(events.len() as u64) as usize;
            let snapshot = events[..until_gap].iter().position(|event| event.time_ns > next_ns);
            let (before, after) = events.split_at(snapshot.unwrap_or(until_gap));
            self.on_slice_in_scope(before);
            let (Records { snapshots, .. }, mut present) = self.split_records();
            if snapshots.schedule.gaps.events_until_due() == 0 {
                snapshots.observe_gaps(&mut present);
            }
            if let Some(next) = after.first() {
                let due = snapshots.schedule.take_due_before(next.time_ns);
                snapshots.take(&due, &mut present);
            }
            events = after;
        }
    }
}

/// The snapshot of finished devices at their peaks, or at the end of the program.
fn snapshot_after_run(spec: TimeSpec, devices: &[(u8, DeviceState)], end: EventTime) -> SnapshotRecord {
    let snapshot = |device: &DeviceState| match spec {
        TimeSpec::Peak => DeviceSnapshot::at_peak(device),
        _ => DeviceSnapshot::at_end(device, end),
    };
    let known = devices.iter().filter(|(ordinal, _)| *ordinal != NO_DEVICE);
    let devices: Vec<_> = known.map(|(ordinal, device)| (*ordinal, snapshot(device))).collect();
    let time = devices.iter().map(|(_, at)| at.time).min_by_key(|time| time.time_ns).unwrap_or(end);
    SnapshotRecord { spec, time, devices }
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
