//! The end of the pass: closes the live sets and collects losses and notes.

use std::collections::BTreeMap;

use gpumemtrace_format::{Counter, Meta};

use super::accounts::Accounts;
use super::records::Records;
use super::{Analysis, ReplayPass};
use crate::device::DeviceState;
use crate::ingest::trace_head::is_torch_snapshot;
use crate::ingest::{MissingEvents, TraceBody, TraceHead, find_losses, metal_totals};
use crate::report::{Accelerator, Ending, Losses, OomPredictions, PluggableMode, TraceLoss, TraceNote};
use crate::state::async_pools::AsyncPools;
use crate::state::driver::MemoryPlace;
use crate::timeline::marks::MarkLog;
use crate::timeline::phases::PhaseRecord;
use crate::timeline::time_spec::TimeSpec;

impl ReplayPass {
    pub(super) fn finish(mut self, path: String, head: &TraceHead, body: &TraceBody) -> Analysis {
        let last_ns = head.end_ns().unwrap_or(0).max(self.clock.now.time_ns);
        self.take_last_snapshots(last_ns);
        if self.awaits_history {
            self.begin_history();
        }
        let (ending, ending_detail) = head.ending();
        let (end, was_set) = self.end.finish(ending, head.was_stopped(), self.clock.now);
        if !was_set {
            self.accounts.set_end(end.time);
        }
        let phases = self.finish_phases();
        let devices = self.finish_devices();
        self.accounts.host.finish(|_, _| None);
        let snapshots = self.records.snapshots.finish(&devices, end.time);
        let unreached_snapshots = self.records.snapshots.schedule.take_unreached();
        let (losses, incomplete) = self.find_losses(head, body);
        let notes = self.collect_notes(&head.meta, &losses, ending, &unreached_snapshots);
        let start_ns = head.meta.number("started_ns").or(self.clock.first_ns).unwrap_or(0);
        let Self { symbols, backward, clock, accounts, records, analyses, steady_steps, scope, .. } = self;
        let step_range = clock.step_range();
        let mut analysis = Analysis {
            path,
            meta: head.meta.clone(),
            ending,
            ending_detail,
            knows_end: head.knows_end(),
            symbols,
            owners: accounts.owners,
            pool_uses: accounts.pool_uses,
            counts: clock.counts_by_kind(),
            losses,
            incomplete,
            notes,
            tracker: accounts.tracker,
            step_rule: clock.step_rule(),
            step_range,
            steps: clock.now.step,
            step_coverage: clock.coverage.finish(&clock.counts),
            phases,
            start_ns,
            end_ns: last_ns.max(start_ns),
            end,
            devices,
            ooms: records.ooms.records,
            oom_count: records.ooms.count,
            oom_counts: records.ooms.counts,
            first_oom: None,
            oom_predictions: OomPredictions::default(),
            setting_effects: Vec::new(),
            failed_call_gaps: records.failed_calls.gaps,
            last_refused_call: records.failed_calls.last,
            failed_calls: accounts.driver.failed_calls,
            first_failed: accounts.driver.first_failed,
            refused_calls: accounts.driver.refused_calls,
            refused_torch_calls: records.failed_calls.of_torch,
            host: accounts.host,
            backward_calls: backward.calls,
            snapshots,
            step_times: clock.step_times,
            first_equal_step: steady_steps.and_then(|steps| steps.finish(clock.now.step)),
            phase_turns: clock.phase_turns,
            unreached_snapshots,
            analyses,
            peak_phases: BTreeMap::new(),
            peak_labels: BTreeMap::new(),
            since: scope.since,
            stream: scope.stream.map(|stream| stream.totals),
        };
        analysis.first_oom = analysis.find_first_oom();
        analysis
    }

    /// Takes the snapshots at times after the last event, which show the state that it left.
    fn take_last_snapshots(&mut self, last_ns: u64) {
        let (Records { snapshots, .. }, mut present) = self.split_records();
        let due = snapshots.schedule.take_due_before(last_ns.saturating_add(1));
        snapshots.take(&due, &mut present);
    }

    fn finish_phases(&mut self) -> Vec<PhaseRecord> {
        let live: Vec<(u8, u64)> = self.accounts.devices.torch_live_bytes().collect();
        std::mem::take(&mut self.clock.phases).finish(self.clock.now.time_ns, &live)
    }

    /// The finished states of the devices that had memory.
    fn finish_devices(&mut self) -> Vec<(u8, DeviceState)> {
        let site_of = |stack| self.symbols.stack_info(stack).site;
        let mut devices = Vec::new();
        for (device, ordinal) in std::mem::take(&mut self.accounts.devices.all).into_iter().zip(0..=u8::MAX) {
            let Some(mut device) = device else { continue };
            if !(device.torch.is_empty() && device.driver.is_empty()) {
                device.finish(ordinal, self.accounts.driver.ranges(), self.clock.now.time_ns, site_of);
                devices.push((ordinal, *device));
            }
        }
        devices
    }

    /// What the trace lacks: counts of single defects, and the reasons why it is incomplete.
    fn find_losses(&self, head: &TraceHead, body: &TraceBody) -> (Losses, Vec<TraceLoss>) {
        let (MissingEvents { lost, in_flight }, mut incomplete) =
            find_losses(head, body, self.clock.threads.len() as u64);
        let counter = |counter| head.counters().map_or(0, |counters| counters.get(counter));
        let driver = &self.accounts.driver;
        let losses = Losses {
            dropped_events: counter(Counter::DroppedEvents).saturating_add(lost),
            corrupt_blocks: head.damage.count + body.damage.count,
            truncated_stacks: counter(Counter::TruncatedStacks),
            unresolved_frames: self.symbols.unresolved_frames().max(counter(Counter::UnreadableFrames)),
            uncovered_calls: counter(Counter::UncoveredCalls),
            in_flight_calls: in_flight + driver.in_flight_calls + body.order.unplaced.len() as u64,
            tracker_mismatches: counter(Counter::TrackerMismatches),
        };
        let frames = self.symbols.undefined_frames();
        if frames > 0 {
            incomplete.push(TraceLoss::UndefinedFrames { frames });
        }
        (losses, incomplete)
    }

    /// The notes about the trace, in the order of the report.
    fn collect_notes(
        &self,
        meta: &Meta,
        losses: &Losses,
        ending: Ending,
        unreached_snapshots: &[TimeSpec],
    ) -> Vec<TraceNote> {
        let mut notes = metadata_notes(meta);
        notes.extend(self.backward.notes(self.clock.events().max(1)));
        notes.extend(self.accounts.non_device_notes());
        let peak_bytes = self.analyses.find::<AsyncPools>().map_or(0, AsyncPools::host_peak);
        let unlisted_marks = self.analyses.find::<MarkLog>().map_or(0, MarkLog::unlisted);
        let (calls, blocks) = (losses.in_flight_calls, losses.tracker_mismatches);
        let is_running = ending == Ending::Running;
        notes.extend((peak_bytes > 0).then_some(TraceNote::HostPools { peak_bytes }));
        let unreached = unreached_snapshots.iter().map(TimeSpec::to_string);
        notes.extend(unreached.map(|when| TraceNote::UnreachedSnapshot { when }));
        let counts_of_notes = [
            (calls, TraceNote::CallsInFlight { calls, is_running }),
            (unlisted_marks, TraceNote::UnlistedMarks { marks: unlisted_marks }),
            (blocks, TraceNote::TrackerMismatches { blocks }),
        ];
        notes.extend(counts_of_notes.into_iter().filter(|(count, _)| *count > 0).map(|(_, note)| note));
        notes
    }
}

impl Accounts {
    /// Notes about managed and foreign memory.
    fn non_device_notes(&self) -> impl Iterator<Item = TraceNote> {
        self.non_device.peaks().filter_map(|(place, peak_bytes)| match place {
            MemoryPlace::Managed => Some(TraceNote::ManagedMemory {
                peak_bytes,
                reserved_bytes: self.managed_segments.peak(),
                prefetches: self.driver.managed_prefetches,
                prefetched_bytes: self.driver.managed_prefetched_bytes,
            }),
            MemoryPlace::Foreign => Some(TraceNote::ForeignMemory { peak_bytes }),
            MemoryPlace::Host | MemoryPlace::Device(_) | MemoryPlace::UnknownDevice => None,
        })
    }
}

/// The notes that follow from the metadata.
fn metadata_notes(meta: &Meta) -> Vec<TraceNote> {
    let recorder = meta.list("notes").iter().map(|text| TraceNote::Recorder { text: text.clone() });
    let mut notes: Vec<TraceNote> = recorder.collect();
    let functions = meta.list("uncovered");
    if !functions.is_empty() {
        notes.push(TraceNote::UncoveredFunctions { functions: functions.to_vec() });
    }
    if meta.list("mode").iter().any(|mode| mode == "started") {
        notes.push(TraceNote::StartedByProgram);
    }
    if meta.text("attached") == Some("late") {
        notes.push(TraceNote::AttachedLate);
    }
    if is_torch_snapshot(meta) {
        notes.extend(snapshot_notes(meta));
    }
    if metal_totals::is_metal(meta) {
        notes.push(TraceNote::Metal);
    }
    match meta.text("pluggable").and_then(PluggableMode::from_name) {
        Some(mode @ (PluggableMode::Caching | PluggableMode::Uncached)) => {
            notes.push(TraceNote::PluggableAllocator { mode });
        }
        Some(PluggableMode::Segments) | None => {}
    }
    notes
}

/// The kind of the devices of a snapshot, if the allocator is not that of CUDA. ROCm has the same.
pub(super) fn other_accelerator(meta: &Meta) -> Option<Accelerator> {
    let accelerator = meta.text("snapshot.accelerator").and_then(Accelerator::from_name);
    accelerator.filter(|accelerator| *accelerator != Accelerator::Rocm)
}

/// What a snapshot of PyTorch lacks, and how far it is consistent.
fn snapshot_notes(meta: &Meta) -> Vec<TraceNote> {
    let number = |name: &str| meta.number(&format!("snapshot.{name}")).unwrap_or(0);
    let mut notes = vec![TraceNote::TorchSnapshot {
        events: number("events"),
        earlier_blocks: number("start_blocks"),
        earlier_bytes: number("start_bytes"),
    }];
    if let Some(accelerator) = other_accelerator(meta) {
        notes.push(TraceNote::OtherAccelerator { accelerator, padding_bytes: number("padding_bytes") });
    }
    let (checked, wrong) = (number("checked_sizes"), number("wrong_sizes"));
    let (count, host_events) = (number("contradictions"), number("host_events"));
    let entries = number("unknown_events").saturating_add(number("strange_entries"));
    let keys = number("unknown_keys");
    let facts = [
        (number("without_segments"), TraceNote::SnapshotWithoutSegments),
        (count, TraceNote::SnapshotContradictions { count }),
        (wrong, TraceNote::SnapshotSizes { checked, wrong }),
        (entries.saturating_add(keys), TraceNote::SnapshotPassedOver { entries, keys }),
        (host_events, TraceNote::SnapshotHostMemory { events: host_events }),
    ];
    notes.extend(facts.into_iter().filter(|(count, _)| *count > 0).map(|(_, note)| note));
    notes
}
