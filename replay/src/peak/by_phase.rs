//! In which named part of the run the blocks of the peak came.
//!
//! Definition. A block came in the part that was begun last of those that had not ended, whichever thread began it.
//!
//! Constraint: which blocks are of the peak shows only at the end. Consequence: it is a second pass, for who asks for the peak of
//! a program that names parts of its run.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_format::{CodeId, Event, EventKind, ThreadId};

use crate::ingest::{Input, read_events};
use crate::pass::stream_filter::StreamFilter;
use crate::pass::{Analysis, AnalysisOptions, analyse_with_head};
use crate::timeline::phases::thread_of_phase;
use crate::util::seeded_map::SeededMap;

/// Analyses a trace, with what only who asks for the peak wants to know: the step before, and named parts of the run.
pub fn analyse_for_peak(input: Input<'_>, asked: AnalysisOptions) -> Result<Analysis, OpenError> {
    let open = input.open;
    let mut one_stream = asked.stream.map(StreamFilter::new);
    let (mut analysis, head) = analyse_with_head(input, AnalysisOptions { step_before_peak: true, ..asked })?;
    if analysis.phases.is_empty() {
        return Ok(analysis);
    }
    let mut pass = PhasePass::new(&analysis);
    let mut own = Vec::new();
    read_events(open, &head, &mut |event| {
        // As the first pass was given them.
        match &mut one_stream {
            Some(stream) => {
                let _ = stream.filter_event(event, &mut own);
            }
            None => own.push(*event),
        }
        own.drain(..).for_each(|event| pass.event(&event, &analysis));
        ControlFlow::Continue(())
    })?;
    analysis.peak_phases = pass.devices.into_iter().map(|(ordinal, on)| (ordinal, on.phases)).collect();
    Ok(analysis)
}

#[derive(Debug, Default)]
struct PeakArrivals {
    /// The last event of the peak.
    newest_of_peak: u64,
    /// The events that brought what is live, by address.
    born: SeededMap<u64, u64>,
    events: u64,
    phases: SeededMap<u64, usize>,
}

impl PeakArrivals {
    fn alloc(&mut self, addr: u64, phase: Option<usize>) {
        self.events += 1;
        if self.events > self.newest_of_peak {
            return;
        }
        self.gone(addr);
        self.born.insert(addr, self.events);
        if let Some(phase) = phase {
            self.phases.insert(self.events, phase);
        }
    }

    fn free(&mut self, addr: u64) {
        self.events += 1;
        if self.events <= self.newest_of_peak {
            self.gone(addr);
        }
    }

    fn gone(&mut self, addr: u64) {
        if let Some(born) = self.born.remove(&addr) {
            self.phases.remove(&born);
        }
    }
}

struct PhasePass {
    devices: BTreeMap<u8, PeakArrivals>,
    /// Parts that have not ended.
    open: Vec<(ThreadId, Option<usize>)>,
}

impl PhasePass {
    fn new(analysis: &Analysis) -> Self {
        let with_torch = analysis.devices.iter().filter(|(_, state)| state.has_torch());
        let on = |newest_of_peak| PeakArrivals { newest_of_peak, ..PeakArrivals::default() };
        let devices = with_torch.map(|(ordinal, state)| (*ordinal, on(state.torch.peak_event())));
        Self { devices: devices.collect(), open: Vec::new() }
    }

    fn event(&mut self, event: &Event, analysis: &Analysis) {
        match event.kind {
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => {
                let phase = self.open.last().and_then(|(_, phase)| *phase);
                let Some(device) = self.devices.get_mut(&event.device) else { return };
                if event.kind == EventKind::BLOCK_ALLOC {
                    device.alloc(event.addr, phase);
                } else {
                    device.free(event.addr);
                }
            }
            EventKind::PHASE_BEGIN => {
                let code = analysis.symbols.definitions().codes.get(&CodeId(event.aux[0] as u32));
                let name = code.map_or("", |code| code.name.as_str());
                self.open.push((
                    thread_of_phase(event),
                    analysis.phases.iter().position(|phase| phase.name == name),
                ));
            }
            EventKind::PHASE_END => {
                if let Some(at) = self.open.iter().rposition(|(thread, _)| *thread == event.thread) {
                    self.open.remove(at);
                }
            }
            _ => {}
        }
    }
}
