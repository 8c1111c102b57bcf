//! The end of the pass: closes the live sets and collects losses and notes.

use gpumemtrace_format::{Counter, EventKind, Meta, NO_DEVICE};

use super::program_end::ProgramEnd;
use super::snapshot_schedule::{DeviceSnapshot, SnapshotRecord};
use super::{Analysis, ReplayPass};
use crate::device::DeviceState;
use crate::ingest::trace_head::is_torch_snapshot;
use crate::ingest::{MissingEvents, TraceBody, TraceHead, find_losses, metal_totals};
use crate::report::{Accelerator, Ending, Losses, OomPredictions, PluggableMode, TraceLoss, TraceNote};
use crate::state::async_pools::AsyncPools;
use crate::state::driver::MemoryPlace;
use crate::timeline::marks::MarkLog;
use crate::timeline::steps::StepRule;
use crate::timeline::time_spec::TimeSpec;

impl ReplayPass {
    pub(super) fn finish(mut self, path: String, head: &TraceHead, body: &TraceBody) -> Analysis {
        // Snapshots requested after the last event show the state that it left.
        let end_ns = head.end_ns().unwrap_or(self.time_ns).max(self.time_ns);
        let due = self.schedule.take_due_before(end_ns.saturating_add(1));
        self.take_snapshots(&due);
        if self.awaits_history {
            self.begin_history();
        }
        let (ending, ending_detail) = head.ending();
        let (end, was_set) = self.end.finish(ending, head.was_stopped(), self.now());
        if !was_set {
            self.set_end(end.time);
        }
        let live: Vec<(u8, u64)> = self.devices.torch_live_bytes().collect();
        let phases = std::mem::take(&mut self.phases).finish(self.time_ns, &live);
        let symbols = self.symbols;
        let mut devices = Vec::new();
        for (device, ordinal) in std::mem::take(&mut self.devices.all).into_iter().zip(0..=u8::MAX) {
            let Some(mut device) = device else { continue };
            if device.torch.is_empty() && device.driver.is_empty() {
                continue;
            }
            let site_of = |stack| symbols.stack_info(stack).site;
            device.finish(ordinal, self.driver.ranges(), self.time_ns, site_of);
            devices.push((ordinal, *device));
        }
        self.host.finish(|_, _| None);
        for spec in self.schedule.take_due_after_run() {
            self.snapshots.push(snapshot_after_run(spec, &devices, end));
        }
        self.snapshots.sort_by_key(|snapshot| snapshot.time.time_ns);
        let events = self.counts.iter().sum::<u64>().max(1);
        let all_counts = self.counts;
        let counts = (0..=u8::MAX).map(EventKind).zip(self.counts).filter(|(_, count)| *count > 0).collect();
        let (MissingEvents { lost, in_flight }, mut incomplete) =
            find_losses(head, body, self.threads.len() as u64);
        let counter = |counter| head.counters().map_or(0, |counters| counters.get(counter));
        let dropped = counter(Counter::DroppedEvents);
        let losses = Losses {
            dropped_events: dropped.saturating_add(lost),
            corrupt_blocks: head.damage.count + body.damage.count,
            truncated_stacks: counter(Counter::TruncatedStacks),
            unresolved_frames: symbols.unresolved_frames().max(counter(Counter::UnreadableFrames)),
            uncovered_calls: counter(Counter::UncoveredCalls),
            in_flight_calls: in_flight + self.driver.in_flight_calls + body.order.unplaced.len() as u64,
            tracker_mismatches: counter(Counter::TrackerMismatches),
        };
        let undefined = symbols.undefined_frames();
        if undefined > 0 {
            incomplete.push(TraceLoss::UndefinedFrames { frames: undefined });
        }
        let start_ns = head.meta.number("started_ns").or(self.first_ns).unwrap_or(0);
        let unreached_snapshots = self.schedule.take_unreached();
        let mut notes = metadata_notes(&head.meta);
        notes.extend(self.backward.notes(events));
        for (place, _) in self.non_device.iter() {
            let peak_bytes = self.non_device_peaks.get(&place).copied().unwrap_or(0);
            match place {
                MemoryPlace::Managed => notes.push(TraceNote::ManagedMemory {
                    peak_bytes,
                    reserved_bytes: self.managed_segments.peak(),
                    prefetches: self.driver.managed_prefetches,
                    prefetched_bytes: self.driver.managed_prefetched_bytes,
                }),
                MemoryPlace::Foreign => notes.push(TraceNote::ForeignMemory { peak_bytes }),
                MemoryPlace::Host | MemoryPlace::Device(_) | MemoryPlace::UnknownDevice => {}
            }
        }
        let host_bytes = self.analyses.find::<AsyncPools>().map_or(0, AsyncPools::host_peak);
        if host_bytes > 0 {
            notes.push(TraceNote::HostPools { peak_bytes: host_bytes });
        }
        let unreached = unreached_snapshots.iter().map(TimeSpec::to_string);
        notes.extend(unreached.map(|when| TraceNote::UnreachedSnapshot { when }));
        let is_running = ending == Ending::Running;
        let unlisted_marks = self.analyses.find::<MarkLog>().map_or(0, MarkLog::unlisted);
        let counts_of_notes = [
            (losses.in_flight_calls, TraceNote::CallsInFlight { calls: losses.in_flight_calls, is_running }),
            (unlisted_marks, TraceNote::UnlistedMarks { marks: unlisted_marks }),
            (losses.tracker_mismatches, TraceNote::TrackerMismatches { blocks: losses.tracker_mismatches }),
        ];
        notes.extend(counts_of_notes.into_iter().filter(|(count, _)| *count > 0).map(|(_, note)| note));
        let mut analysis = Analysis {
            path,
            meta: head.meta.clone(),
            ending,
            ending_detail,
            knows_end: head.knows_end(),
            symbols,
            owners: self.owners,
            pool_uses: self.pool_uses,
            counts,
            losses,
            incomplete,
            notes,
            tracker: self.tracker,
            step_rule: self.clock.step_rule(),
            step_range: match self.clock.step_rule() {
                StepRule::Range(name) => self.names.name(name).map(str::to_owned),
                _ => None,
            },
            steps: self.step,
            step_coverage: self.coverage.finish(&all_counts),
            phases,
            start_ns,
            end_ns: head.end_ns().unwrap_or(self.time_ns).max(self.time_ns).max(start_ns),
            end,
            devices,
            ooms: self.ooms,
            oom_count: self.oom_count,
            oom_counts: self.oom_counts,
            first_oom: None,
            oom_predictions: OomPredictions::default(),
            setting_effects: Vec::new(),
            failed_call_gaps: self.failed_call_gaps,
            last_refused_call: self.last_refused_call,
            failed_calls: self.driver.failed_calls,
            first_failed: self.driver.first_failed,
            refused_calls: self.driver.refused_calls,
            refused_torch_calls: self.refused_torch_calls,
            host: self.host,
            backward_calls: self.backward.calls,
            snapshots: self.snapshots,
            step_times: self.step_times,
            first_equal_step: self.steady_steps.and_then(|steps| steps.finish(self.step)),
            phase_turns: self.phase_turns,
            unreached_snapshots,
            analyses: self.analyses,
            peak_phases: std::collections::BTreeMap::new(),
            peak_labels: std::collections::BTreeMap::new(),
            since: self.scope.since,
            stream: self.scope.stream.map(|stream| stream.totals),
        };
        analysis.first_oom = analysis.find_first_oom();
        analysis
    }
}

/// The snapshot of finished devices at their peaks, or at the end of the program.
fn snapshot_after_run(spec: TimeSpec, devices: &[(u8, DeviceState)], end: ProgramEnd) -> SnapshotRecord {
    let snapshot = |device: &DeviceState| match spec {
        TimeSpec::Peak => DeviceSnapshot::at_peak(device),
        _ => DeviceSnapshot::at_end(device, end.time),
    };
    let known = devices.iter().filter(|(ordinal, _)| *ordinal != NO_DEVICE);
    let devices: Vec<_> = known.map(|(ordinal, device)| (*ordinal, snapshot(device))).collect();
    let time = devices.iter().map(|(_, at)| at.time).min_by_key(|time| time.time_ns).unwrap_or(end.time);
    SnapshotRecord { spec, time, devices }
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
