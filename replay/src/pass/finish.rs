//! What the pass leaves when everything is read: its books closed, and what a reader must be told of the trace.

use gpumemtrace_format::{Counter, EventKind};

use super::{Analysis, ReplayPass};
use crate::ingest::{MissingEvents, TraceBody, TraceHead, count_missing_events, describe_incompleteness};
use crate::report::Losses;
use crate::state::driver::MemoryPlace;
use crate::timeline::steps::StepSource;

impl ReplayPass {
    pub(super) fn finish(mut self, path: String, head: &TraceHead, body: &TraceBody) -> Analysis {
        // What was asked for of the time after the last event is as that left it.
        let end_ns = head.end_ns().unwrap_or(self.time_ns).max(self.time_ns);
        let come = self.schedule.due_at(end_ns.saturating_add(1));
        self.take_snapshots(&come);
        let held: Vec<(u8, u64)> = self.devices.held().collect();
        let phases = std::mem::take(&mut self.phases).finish(self.time_ns, &held);
        let symbols = self.symbols;
        let mut devices = Vec::new();
        for (device, ordinal) in std::mem::take(&mut self.devices.all).into_iter().zip(0..=u8::MAX) {
            let Some(mut device) = device else { continue };
            if device.torch.is_empty() && device.driver.is_empty() {
                continue;
            }
            device
                .finish(ordinal, self.driver.ranges(), self.time_ns, |stack| symbols.stack_info(stack).site);
            devices.push((ordinal, *device));
        }
        self.host.finish();
        let events = self.counts.iter().sum::<u64>().max(1);
        let counts = (0..=u8::MAX).map(EventKind).zip(self.counts).filter(|(_, count)| *count > 0).collect();
        let MissingEvents { lost, in_flight } = count_missing_events(head, body, self.threads.len() as u64);
        let counter = |counter| head.counters().map_or(0, |counters| counters.get(counter));
        let dropped = counter(Counter::DroppedEvents);
        let losses = Losses {
            dropped_events: dropped.saturating_add(lost),
            corrupt_blocks: head.damage.count + body.damage.count,
            truncated_stacks: counter(Counter::TruncatedStacks),
            unresolved_frames: symbols.unresolved_frames().max(counter(Counter::UnreadableFrames)),
            uncovered_calls: counter(Counter::UncoveredCalls),
            in_flight_calls: in_flight + body.order.unplaced.len() as u64,
            tracker_mismatches: counter(Counter::TrackerMismatches),
        };
        let mut incomplete = describe_incompleteness(head, body, MissingEvents { lost, in_flight }, dropped);
        let undefined = symbols.undefined_frames();
        if undefined > 0 {
            incomplete.push(format!(
                "{undefined} stack frames are used and not defined in the file: whose lines they are is not known"
            ));
        }
        let (ending, ending_detail) = head.ending();
        let start_ns = head.meta.number("started_ns").or(self.first_ns).unwrap_or(0);
        let mut notes: Vec<String> = head.meta.list("notes").to_vec();
        let uncovered = head.meta.list("uncovered");
        notes.extend(self.backward.notes(events));
        if !uncovered.is_empty() {
            notes.push(format!(
                "driver functions that were called and are not recorded: {}",
                uncovered.join(", ")
            ));
        }
        if head.meta.list("mode").iter().any(|mode| mode == "started") {
            notes.push(
                if crate::ingest::metal_totals::is_metal(&head.meta) {
                    "the program started the recording itself (gpumemtrace.start()): what it did before is missing, and what Metal had handed out by then is not known"
                } else {
                    "the program started the recording itself (gpumemtrace.start()): what it did before is missing, and what PyTorch held by then is shown at that line"
                }
                .to_owned(),
            );
        }
        if head.meta.text("attached") == Some("late") {
            notes.push(
                "recording began after the program had loaded the driver: calls through addresses that it had by then are missing"
                    .to_owned(),
            );
        }
        if crate::ingest::metal_totals::is_metal(&head.meta) {
            notes.push(
                "recorded from Metal: what is called a tensor is a buffer or a texture in a heap, and what is called reserved are the heaps. \
                 PyTorch keeps buffers that no tensor uses and gives them to later ones, which Metal is not told"
                    .to_owned(),
            );
        }
        match head.meta.text("pluggable") {
            Some("caching") => notes.push(
                "tensors were served by gpumemtrace's own caching allocator: what is said of reserved memory and of fragmentation is \
                 about that one, not about PyTorch's"
                    .to_owned(),
            ),
            Some("uncached") => notes.push(
                "each tensor was a call of the driver, through gpumemtrace_malloc: nothing is said about PyTorch's own allocator"
                    .to_owned(),
            ),
            _ => {}
        }
        for (place, _) in self.non_device.iter() {
            let peak = self.non_device_peaks.get(&place).copied().unwrap_or(0);
            match place {
                MemoryPlace::Managed => notes.push(format!(
                    "managed memory of up to {peak} bytes is not counted: no call tells on which device or host it lies"
                )),
                MemoryPlace::Foreign => notes.push(format!(
                    "memory of other processes or APIs of up to {peak} bytes was mapped, and is not counted as this process's"
                )),
                MemoryPlace::Host | MemoryPlace::Device(_) | MemoryPlace::UnknownDevice => {}
            }
        }
        let unreached_snapshots = self.schedule.unreached();
        for when in &unreached_snapshots {
            notes.push(format!("--at {when} never came in this trace"));
        }
        if losses.in_flight_calls > 0 {
            let calls = losses.in_flight_calls;
            notes.push(format!(
                "{calls} calls had not returned when the process ended; nobody knows how they went"
            ));
        }
        let unlisted = self.marks.count - self.marks.first.len() as u64;
        if unlisted > 0 {
            notes.push(format!("{unlisted} marks of the program are not listed: only the first of them are"));
        }
        if losses.tracker_mismatches > 0 {
            let blocks = losses.tracker_mismatches;
            notes.push(format!(
                "{blocks} times PyTorch's tracker and its allocator did not say the same; what those blocks asked for is not known"
            ));
        }
        Analysis {
            path,
            meta: head.meta.clone(),
            ending,
            ending_detail,
            symbols,
            owners: self.owners,
            counts,
            losses,
            incomplete,
            notes,
            tracker: self.tracker,
            step_source: self.clock.step_source(),
            step_range: match self.clock.step_source() {
                StepSource::Range(name) => self.names.name(name).map(str::to_owned),
                _ => None,
            },
            steps: self.step,
            phases,
            marks: self.marks,
            start_ns,
            end_ns: head.end_ns().unwrap_or(self.time_ns).max(self.time_ns).max(start_ns),
            devices,
            ooms: self.ooms,
            oom_count: self.oom_count,
            oom_counts: self.oom_counts,
            holder_scans: self.holder_scans,
            mps_samples: self.mps_samples,
            failed_calls: self.driver.failed_calls,
            first_failed: self.driver.first_failed,
            refused_calls: self.driver.refused_calls,
            host: self.host,
            backward_calls: self.backward.calls,
            snapshots: self.snapshots,
            unreached_snapshots,
            async_pools: self.async_pools,
            peak_phases: std::collections::BTreeMap::new(),
            since: self.scope.since,
            stream: self.scope.stream.map(|stream| stream.facts),
        }
    }
}
