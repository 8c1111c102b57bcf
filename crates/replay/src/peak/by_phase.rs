//! Attributes the blocks of the peak to the phases of the program, and to the labels in the trace.
//!
//! A block belongs to the open phase that began last, on any thread. Its label is the last one up
//! to the peak. Which blocks the peak consists of is known only at the end, so [`analyse_for_peak`]
//! reads the trace a second time. It does so only if the trace has phases or labels. Memory grows
//! with the live blocks. `tests/peaks.rs` checks the attribution.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_format::{CodeId, Event, EventKind, ThreadId};

use crate::ingest::{Input, TraceHead, read_events};
use crate::pass::stream_filter::StreamFilter;
use crate::pass::{Analysis, AnalysisOptions, analyse_with_head};
use crate::timeline::phases::thread_of_phase;
use crate::util::seeded_map::SeededMap;

/// Analyses a trace like [`crate::analyse_with`], and adds what only reports of the peak need:
/// the step before it, and the phases of its blocks. Returns the head like [`analyse_with_head`].
pub fn analyse_for_peak(
    input: Input<'_>,
    options: AnalysisOptions,
) -> Result<(Analysis, TraceHead), OpenError> {
    let open = input.open;
    let mut filter = options.stream.map(StreamFilter::new);
    let (mut analysis, head) =
        analyse_with_head(input, AnalysisOptions { step_before_peak: true, ..options })?;
    let has_labels = analysis.counts.iter().any(|(kind, _)| *kind == EventKind::BLOCK_LABEL);
    if analysis.phases.is_empty() && !has_labels {
        return Ok((analysis, head));
    }
    let mut pass = PhasePass::new(&analysis);
    let mut filtered = Vec::new();
    read_events(open, &head, &mut |event| {
        // The first pass saw filtered events, and the peak counts them.
        match &mut filter {
            Some(filter) => {
                let _ = filter.filter_event(event, &mut filtered);
            }
            None => filtered.push(*event),
        }
        filtered.drain(..).for_each(|event| pass.account(&event, &analysis));
        ControlFlow::Continue(())
    })?;
    for (ordinal, blocks) in pass.devices {
        if !analysis.phases.is_empty() {
            analysis.peak_phases.insert(ordinal, blocks.phases);
        }
        analysis.peak_labels.insert(ordinal, blocks.labels);
    }
    Ok((analysis, head))
}

/// Live blocks of one device up to its peak, with their phases and labels.
#[derive(Debug, Default)]
struct BlocksUntilPeak {
    /// Number of the event at which the peak was reached.
    peak_event: u64,
    /// Number of the current event.
    event: u64,
    /// Number of the event that allocated a live block, by address.
    serial: SeededMap<u64, u64>,
    /// Phase of a live block, by the number of the event that allocated it.
    phases: SeededMap<u64, usize>,
    /// Label of a live block, in the same way.
    labels: SeededMap<u64, CodeId>,
}

impl BlocksUntilPeak {
    fn allocate(&mut self, addr: u64, phase: Option<usize>) {
        self.event += 1;
        if self.event > self.peak_event {
            return;
        }
        self.remove(addr);
        self.serial.insert(addr, self.event);
        if let Some(phase) = phase {
            self.phases.insert(self.event, phase);
        }
    }

    fn label(&mut self, addr: u64, label: CodeId) {
        if self.event <= self.peak_event
            && let Some(serial) = self.serial.get(&addr)
        {
            self.labels.insert(*serial, label);
        }
    }

    fn free(&mut self, addr: u64) {
        self.event += 1;
        if self.event <= self.peak_event {
            self.remove(addr);
        }
    }

    fn remove(&mut self, addr: u64) {
        if let Some(serial) = self.serial.remove(&addr) {
            self.phases.remove(&serial);
            self.labels.remove(&serial);
        }
    }
}

/// The second pass over the events.
struct PhasePass {
    devices: BTreeMap<u8, BlocksUntilPeak>,
    open: Vec<PhaseOnThread>,
}

/// A phase that has not ended, on its thread.
struct PhaseOnThread {
    thread: ThreadId,
    /// Index in the analysis's phases, if it is one of them.
    phase: Option<usize>,
}

impl PhasePass {
    fn new(analysis: &Analysis) -> Self {
        let with_torch = analysis.devices.iter().filter(|(_, state)| state.has_torch());
        let until = |peak_event| BlocksUntilPeak { peak_event, ..BlocksUntilPeak::default() };
        let devices = with_torch.map(|(ordinal, state)| (*ordinal, until(state.torch.peak_event())));
        Self { devices: devices.collect(), open: Vec::new() }
    }

    fn account(&mut self, event: &Event, analysis: &Analysis) {
        match event.kind {
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => {
                let phase = self.open.last().and_then(|open| open.phase);
                let Some(device) = self.devices.get_mut(&event.device) else { return };
                if event.kind == EventKind::BLOCK_ALLOC {
                    device.allocate(event.addr, phase);
                } else {
                    device.free(event.addr);
                }
            }
            EventKind::BLOCK_LABEL => {
                if let Some(device) = self.devices.get_mut(&event.device) {
                    device.label(event.addr, CodeId(event.aux[0] as u32));
                }
            }
            EventKind::PHASE_BEGIN => {
                let code = analysis.symbols.definitions().codes.get(&CodeId(event.aux[0] as u32));
                let name = code.map_or("", |code| code.name.as_str());
                self.open.push(PhaseOnThread {
                    thread: thread_of_phase(event),
                    phase: analysis.phases.iter().position(|phase| phase.name == name),
                });
            }
            EventKind::PHASE_END => {
                if let Some(at) = self.open.iter().rposition(|open| open.thread == event.thread) {
                    self.open.remove(at);
                }
            }
            _ => {}
        }
    }
}
