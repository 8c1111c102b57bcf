//! The peak of the step before the one in which the peak was, block by block; and in which named part of the run the blocks of
//! the peak came.
//!
//! Definitions. The peak of a step is the first moment of it at which most was live, what it began with included. A block came
//! in the part that was begun last of those that had not ended, whichever thread began it.
//!
//! Constraint: which step that is shows only at the end, and keeping the peak of every step would cost each event. Consequence:
//! it is a second pass, for who asks for the peak; it has nothing to do but in that one step.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_format::{CodeId, Event, EventKind, ThreadId};

use crate::analysis::{Analysis, Asked, analyse_with_head};
use crate::backward::Backward;
use crate::book::LiveBlock;
use crate::input::{Input, read_events};
use crate::keyed::KeyedMap;
use crate::live_blocks::LiveBlocks;
use crate::peak_blocks::{Death, PeakBlock, PeakBlocks};
use crate::ranges::StepNames;
use crate::steps::StepClock;
use crate::streams::{Of, OneStream};
use crate::symbols::StackId;

/// What a second pass tells of the peak of a device.
#[derive(Debug, Default)]
pub struct Before {
    /// The peak of the step before, if there is one.
    pub peak: Option<StepPeak>,
    /// By the event that brought it: index in [`Analysis::phases`] of the part in which a block of the peak came.
    pub phases: KeyedMap<u64, usize>,
}

/// The peak of a step.
#[derive(Debug)]
pub struct StepPeak {
    /// Which.
    pub step: u32,
    /// When.
    pub time_ns: u64,
    /// What was live.
    pub live_bytes: u64,
    /// That, in the order in which it came.
    pub blocks: Vec<PeakBlock>,
}

/// Analyses a trace, with what only a second pass tells of its peak.
pub fn analyse_with_step_before(input: Input<'_>, asked: Asked) -> Result<Analysis, OpenError> {
    let open = input.open;
    let mut one_stream = asked.stream.map(OneStream::new);
    let (mut analysis, head) = analyse_with_head(input, asked)?;
    let mut pass = Pass::new(&analysis);
    pass.begin(&analysis);
    if pass.has_nothing_to_do(&analysis) {
        return Ok(analysis);
    }
    let mut own = Vec::new();
    read_events(open, &head, &mut |event| {
        let Some(stream) = &mut one_stream else {
            pass.event(event, &mut analysis);
            return ControlFlow::Continue(());
        };
        // As the first pass was given them.
        let whose = stream.take(event, &mut own);
        own.drain(..).for_each(|event| pass.event(&event, &mut analysis));
        if let Of::Others = whose {
            pass.steps(event, &mut analysis);
        }
        ControlFlow::Continue(())
    })?;
    analysis.before_peaks = pass.finish();
    Ok(analysis)
}

#[derive(Debug, Default)]
struct Follow {
    /// The step whose peak is wanted.
    wanted: Option<u32>,
    /// The last event of the peak.
    newest_of_peak: u64,
    live: LiveBlocks,
    live_bytes: u64,
    events: u64,
    most: Option<(u64, u64)>,
    blocks: PeakBlocks,
    phases: KeyedMap<u64, usize>,
}

impl Follow {
    fn alloc(&mut self, event: &Event, stack: StackId, step: u32, phase: Option<usize>) {
        self.events += 1;
        let requested_bytes = event.detail.map(|detail| detail.requested_bytes);
        let block = LiveBlock { bytes: event.size, stack, step, born: self.events, requested_bytes };
        if let Some(lost) = self.live.insert(event.addr, block) {
            self.live_bytes = self.live_bytes.saturating_sub(lost.bytes);
            self.blocks.went(event.addr, &lost, Death { stack: None, step });
        }
        self.live_bytes = self.live_bytes.saturating_add(event.size);
        if let Some(phase) = phase.filter(|_| self.events <= self.newest_of_peak) {
            self.phases.insert(self.events, phase);
        }
    }

    fn free(&mut self, addr: u64, stack: StackId, step: u32) {
        self.events += 1;
        if let Some(block) = self.live.remove(addr) {
            self.live_bytes = self.live_bytes.saturating_sub(block.bytes);
            self.blocks.went(addr, &block, Death { stack: Some(stack), step });
            if self.events <= self.newest_of_peak {
                self.phases.remove(&block.born);
            }
        }
    }

    /// In the step that is wanted: this moment may be its highest.
    fn observe(&mut self, time_ns: u64) {
        if self.most.is_none_or(|(bytes, _)| self.live_bytes > bytes) {
            self.most = Some((self.live_bytes, time_ns));
            self.blocks.mark(self.events);
        }
    }

    fn finish(self) -> Before {
        let peak = self.wanted.zip(self.most).map(|(step, (live_bytes, time_ns))| StepPeak {
            step,
            time_ns,
            live_bytes,
            blocks: self.blocks.all(&self.live),
        });
        Before { peak, phases: self.phases }
    }
}

struct Pass {
    names: StepNames,
    clock: StepClock,
    backward: Backward,
    devices: BTreeMap<u8, Follow>,
    /// Parts that have not ended.
    open: Vec<(ThreadId, Option<usize>)>,
    time_ns: u64,
    step: u32,
}

impl Pass {
    fn new(analysis: &Analysis) -> Self {
        let has_steps = analysis.rule.source().is_some();
        let devices =
            analysis.devices.iter().filter(|(_, state)| state.has_torch()).map(|(ordinal, state)| {
                let peak = state.torch.peak();
                // What came before the part that was asked for is not told.
                let is_told = |step: &u32| *step >= state.torch.first_step;
                let wanted = peak.step.checked_sub(1).filter(is_told).filter(|_| has_steps && peak.live > 0);
                let newest_of_peak = state.torch.peak_event();
                (*ordinal, Follow { wanted, newest_of_peak, ..Follow::default() })
            });
        Self {
            names: StepNames::new(analysis.symbols.definitions().codes.values()),
            clock: StepClock::new(analysis.rule),
            backward: Backward::default(),
            devices: devices.collect(),
            open: Vec::new(),
            time_ns: 0,
            step: 0,
        }
    }

    /// The first step begins with nothing.
    fn begin(&mut self, analysis: &Analysis) {
        for device in self.devices.values_mut().filter(|device| device.wanted == Some(0)) {
            device.observe(analysis.start_ns);
        }
    }

    fn has_nothing_to_do(&self, analysis: &Analysis) -> bool {
        analysis.phases.is_empty() && self.devices.values().all(|device| device.wanted.is_none())
    }

    /// What an event says about steps; its stack.
    fn steps(&mut self, event: &Event, analysis: &mut Analysis) -> StackId {
        self.time_ns = self.time_ns.max(event.time_ns);
        let (stack, facts) = self.backward.stack_of(event, &mut analysis.symbols);
        let what = self.names.or_optimizer(event, facts.optimizer);
        let begun = self.clock.begins(event, stack, what, self.time_ns);
        for _ in 0..begun {
            self.step += 1;
            for device in self.devices.values_mut().filter(|device| device.wanted == Some(self.step)) {
                device.observe(self.time_ns);
            }
        }
        stack
    }

    fn event(&mut self, event: &Event, analysis: &mut Analysis) {
        let stack = self.steps(event, analysis);
        match event.kind {
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => {
                let phase = self.open.last().and_then(|(_, phase)| *phase);
                let Some(device) = self.devices.get_mut(&event.device) else { return };
                if event.kind == EventKind::BLOCK_ALLOC {
                    device.alloc(event, stack, self.step, phase);
                } else {
                    device.free(event.addr, stack, self.step);
                }
                if device.wanted == Some(self.step) {
                    device.observe(self.time_ns);
                }
            }
            EventKind::PHASE_BEGIN => {
                let code = analysis.symbols.definitions().codes.get(&CodeId(event.aux[0] as u32));
                let name = code.map_or("", |code| code.name.as_str());
                self.open.push((event.thread, analysis.phases.iter().position(|phase| phase.name == name)));
            }
            EventKind::PHASE_END => {
                if let Some(at) = self.open.iter().rposition(|(thread, _)| *thread == event.thread) {
                    self.open.remove(at);
                }
            }
            _ => {}
        }
    }

    fn finish(self) -> BTreeMap<u8, Before> {
        self.devices.into_iter().map(|(ordinal, device)| (ordinal, device.finish())).collect()
    }
}
