//! One pass over the events of a trace, and what it leaves for the reports.
//!
//! Constraint: memory in proportion to live blocks and stacks. Consequence: each event updates the books of its device and
//! is forgotten; only out-of-memory events are kept, the first [`MAX_OOMS`] of them.

mod driver_calls;
mod finish;
pub mod follow;
mod oom_events;
mod program_events;
mod scope;
pub mod snapshot_schedule;
mod snapshots;
pub mod stream_filter;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_format::{Event, EventKind, Meta, NO_DEVICE, NodeId, ThreadId, TrackerState};

use crate::callsite::autograd::Backward;
use crate::callsite::code_origin::OwnPaths;
use crate::callsite::module_owner::Owners;
use crate::callsite::symbols::{SiteId, Stack, StackId, Symbols};
use crate::ingest::metal_totals;
use crate::ingest::prescan::Ahead;
use crate::ingest::{Head, Input, read_together};
use crate::pass::snapshot_schedule::{Alarms, Instant};
use crate::pass::stream_filter::{OneStream, StreamFacts, StreamId};
use crate::report::{Ending, Losses};
use crate::state::async_pools::AsyncPools;
use crate::state::device::{DeviceState, Devices, device_of};
use crate::state::driver::{Driver, Place, Totals};
use crate::state::holder_scans::Looks;
use crate::state::live_set::Book;
use crate::state::mps_samples::TorchMemory;
use crate::timeline::marks::{Awaited, Marks};
use crate::timeline::nvtx_ranges::StepNames;
use crate::timeline::phases::{Phase, Phases};
use crate::timeline::steps::{Rule, StepClock};
use crate::timeline::time_spec::When;
use crate::util::seeded_map::{KeyedMap, KeyedSet};
use scope::Part;
pub use scope::Since;

pub use oom_events::{MAX_OOMS, OomRecord};

/// A trace, analysed.
#[derive(Debug)]
pub struct Analysis {
    /// As the user named it.
    pub path: String,
    /// Who was traced.
    pub meta: Meta,
    /// How it ended.
    pub ending: Ending,
    /// More of that.
    pub ending_detail: Option<String>,
    /// Sites and stacks.
    pub symbols: Symbols,
    /// Whose memory.
    pub owners: Owners,
    /// Events by kind.
    pub counts: Vec<(EventKind, u64)>,
    /// What is missing.
    pub losses: Losses,
    /// Why it is incomplete; empty when it is not.
    pub incomplete: Vec<String>,
    /// Good to know.
    pub notes: Vec<String>,
    /// How far PyTorch's own tracker was of help; `None` where there was no PyTorch.
    pub tracker: Option<TrackerState>,
    /// How steps were told.
    pub rule: Rule,
    /// The name of the ranges that are steps, where ranges are.
    pub step_range: Option<String>,
    /// Steps begun.
    pub steps: u32,
    /// What the program gave names to, in the order in which they first began.
    pub phases: Vec<Phase>,
    /// The program's own moments.
    pub marks: Marks,
    /// Zero of all times in reports.
    pub start_ns: u64,
    /// The last moment.
    pub end_ns: u64,
    /// By ordinal.
    pub devices: Vec<(u8, DeviceState)>,
    /// The first ones.
    pub ooms: Vec<OomRecord>,
    /// All of them.
    pub oom_count: u64,
    /// The same by device.
    pub oom_counts: BTreeMap<u8, u64>,
    /// Who holds what, as the program found it out.
    pub looks: Looks,
    /// What PyTorch said of its own memory when it was asked.
    pub torch_memory: TorchMemory,
    /// Driver calls that returned an error.
    pub failed_calls: u64,
    /// Who made the first of them.
    pub first_failed: Option<StackId>,
    /// Of these, the ones for which no memory was left.
    pub refused_calls: u64,
    /// Memory that is on no device, or not this process's own: pinned, managed, foreign; now and at its peak.
    pub apart: Vec<(Place, u64, u64)>,
    /// Pinned host memory.
    pub host: Book,
    /// Frames of the program's calls of `backward()`.
    pub backward_calls: Vec<NodeId>,
    /// Moments that were asked for, as they came.
    pub instants: Vec<Instant>,
    /// Those that did not.
    pub never: Vec<When>,
    /// The driver's stream-ordered pools.
    pub async_pools: AsyncPools,
    /// By ordinal: in which named part of the run, as an index in `phases`, the event that brought a block of the peak came. Empty
    /// unless a second pass was made for it ([`crate::peak::by_phase`]).
    pub peak_phases: BTreeMap<u8, KeyedMap<u64, usize>>,
    /// From when on all of this is; the whole run where there is none.
    pub since: Option<Since>,
    /// Of which stream all of this is; of all where there is none.
    pub stream: Option<StreamFacts>,
}

struct Pass {
    symbols: Symbols,
    clock: StepClock,
    names: StepNames,
    phases: Phases,
    looks: Looks,
    torch_memory: TorchMemory,
    marks: Marks,
    backward: Backward,
    driver: Driver,
    devices: Devices,
    counts: [u64; 256],
    threads: KeyedSet<ThreadId>,
    last_thread: Option<ThreadId>,
    time_ns: u64,
    first_ns: Option<u64>,
    step: u32,
    ooms: Vec<OomRecord>,
    oom_count: u64,
    oom_counts: BTreeMap<u8, u64>,
    owners: Owners,
    apart: Totals,
    host: Book,
    apart_peaks: KeyedMap<Place, u64>,
    tracker: Option<TrackerState>,
    alarms: Alarms,
    instants: Vec<Instant>,
    async_pools: AsyncPools,
    part: Part,
}

/// What must be known before the events are read.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Whose code is the user's own.
    pub own: OwnPaths,
    /// Moments that are wanted besides the peaks and the end.
    pub at: Vec<When>,
    /// Only what comes from then on.
    pub since: Option<When>,
    /// Only what PyTorch allocates on this stream.
    pub stream: Option<StreamId>,
    /// Also the peak of the step before the peak.
    pub step_before: bool,
}

/// Analyses a trace.
pub fn analyse(input: Input<'_>) -> Result<Analysis, OpenError> {
    analyse_as(input, Asked::default())
}

/// Analyses a trace for whom wants to know this.
pub fn analyse_as(input: Input<'_>, asked: Asked) -> Result<Analysis, OpenError> {
    analyse_with_head(input, asked).map(|(analysis, _)| analysis)
}

/// As [`analyse_as`], for whom reads the events once more: what that takes comes along, without definitions.
pub(crate) fn analyse_with_head(input: Input<'_>, asked: Asked) -> Result<(Analysis, Head), OpenError> {
    let (path, open) = (input.path.to_owned(), input.open);
    let (since, stream) = (asked.since.clone(), asked.stream);
    let mut head = Head::read(input)?;
    let symbols = Symbols::new(std::mem::take(&mut head.definitions), asked.own);
    let names = StepNames::new(symbols.definitions().codes.values());
    let started = head.meta.number("started_ns");
    let span_ns = head.end_ns().zip(started).map_or(0, |(end, start)| end.saturating_sub(start));
    let step_before = asked.step_before;
    let part = || Part {
        follows_step_peaks: step_before,
        since: since.clone().map(|asked| Since { asked, come: None }),
        since_mark: since.as_ref().and_then(|asked| match asked {
            When::Mark(name) => Some(Awaited::new(name)),
            _ => None,
        }),
        stream: stream.map(OneStream::new),
        started_ns: started,
        end_ns: head.end_ns(),
    };
    let mut ahead = Some(Ahead::new(symbols, names, head.end_ns()));
    let alarms = |ahead: &Ahead| Alarms::new(&asked.at, started.or(ahead.first_ns).unwrap_or(0), span_ns);
    let mut pass: Option<Pass> = None;
    let mut totals = metal_totals::Totals::of(&head.meta);
    let mut body = read_together(open, &head, &mut |events| {
        let mut events = totals.told(events).iter();
        while let Some(scouting) = &mut ahead
            && let Some(event) = events.next()
        {
            if scouting.event(event).is_break() {
                if !scouting.has_all() {
                    return ControlFlow::Break(());
                }
                pass = ahead.take().map(|ahead| {
                    let alarms = alarms(&ahead);
                    Pass::after(ahead, alarms, span_ns, part())
                });
            }
        }
        if let Some(pass) = &mut pass {
            pass.events(events.as_slice());
        }
        ControlFlow::Continue(())
    })?;
    let is_whole = ahead.as_ref().is_none_or(Ahead::has_all);
    let after = |ahead: Ahead| {
        let alarms = alarms(&ahead);
        Pass::after(ahead, alarms, span_ns, part())
    };
    let Some(mut pass) = pass.or_else(|| ahead.map(after)) else {
        unreachable!("the scout is there until the pass is")
    };
    if !is_whole {
        let mut totals = metal_totals::Totals::of(&head.meta);
        body = read_together(open, &head, &mut |events| {
            pass.events(totals.told(events));
            ControlFlow::Continue(())
        })?;
    }
    let analysis = pass.finish(path, &head, &body);
    Ok((analysis, head))
}

impl Pass {
    /// Begins with what the scout has kept: everything that it has seen, or nothing.
    #[inline(never)] // As below.
    fn after(mut ahead: Ahead, alarms: Alarms, span_ns: u64, part: Part) -> Self {
        let kept = ahead.take_kept();
        let clock = StepClock::new(ahead.scout.rule());
        let mut pass = Self { part, ..Self::new(ahead.symbols, (clock, ahead.names), alarms, span_ns) };
        pass.devices.follows_step_peaks = pass.part.follows_step_peaks;
        for events in &kept {
            pass.events(events);
        }
        pass
    }

    fn new(symbols: Symbols, (clock, names): (StepClock, StepNames), alarms: Alarms, span_ns: u64) -> Self {
        Self {
            symbols,
            clock,
            names,
            phases: Phases::default(),
            looks: Looks::default(),
            torch_memory: TorchMemory::default(),
            marks: Marks::default(),
            backward: Backward::default(),
            driver: Driver::default(),
            devices: Devices {
                all: (0..256).map(|_| None).collect(),
                span_ns,
                first_step: 0,
                follows_step_peaks: false,
            },
            counts: [0; 256],
            threads: KeyedSet::default(),
            last_thread: None,
            time_ns: 0,
            first_ns: None,
            step: 0,
            ooms: Vec::new(),
            oom_count: 0,
            oom_counts: BTreeMap::new(),
            owners: Owners::default(),
            apart: Totals::default(),
            host: Book::at_step(0, span_ns),
            apart_peaks: KeyedMap::default(),
            tracker: None,
            alarms,
            instants: Vec::new(),
            async_pools: AsyncPools::default(),
            part: Part::default(),
        }
    }

    fn events(&mut self, events: &[Event]) {
        // Nearly in order of time: a slice that ends before an alarm has nothing for it that matters.
        if events.last().is_some_and(|event| event.time_ns > self.alarms.next_ns()) {
            self.events_and_alarms(events);
        } else {
            self.events_in_a_row(events);
        }
    }

    fn events_in_a_row(&mut self, events: &[Event]) {
        if self.part.is_all() {
            self.each(events);
        } else {
            self.events_of_part(events);
        }
    }

    #[inline(never)] // Once: it is much.
    fn each(&mut self, events: &[Event]) {
        for event in events {
            self.event(event);
        }
    }

    /// What every event is counted for, whosever it is: steps too. Its stack.
    #[inline(always)]
    #[allow(clippy::inline_always)] // As below.
    fn seen(&mut self, event: &Event) -> (StackId, Stack) {
        self.counts[event.kind.0 as usize] += 1;
        if self.last_thread != Some(event.thread) {
            self.last_thread = Some(event.thread);
            self.threads.insert(event.thread);
        }
        // Threads stamp times themselves: a little disorder is normal and must not run a chart backwards.
        self.time_ns = self.time_ns.max(event.time_ns);
        self.first_ns.get_or_insert(event.time_ns);
        let (stack, facts) = self.backward.stack_of(event, &mut self.symbols);
        let what = self.names.or_optimizer(event, facts.optimizer);
        let begun = self.clock.begins(event, stack, what, self.time_ns);
        if begun > 0 {
            self.begin_steps(begun);
        }
        (stack, facts)
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // For the loop above.
    fn event(&mut self, event: &Event) {
        let (stack, facts) = self.seen(event);
        match event.kind {
            EventKind::BLOCK_ALLOC => {
                let when = (self.time_ns, self.step);
                let device = device_of(&mut self.devices, event.device, self.step);
                device.block_alloc(event, (stack, facts.site), when, &self.driver);
                self.phases.held(event.device, device.torch.total().bytes);
            }
            EventKind::BLOCK_FREE => {
                let when = (self.time_ns, self.step);
                let device = device_of(&mut self.devices, event.device, self.step);
                device.block_free(event, (stack, facts.site), when, &self.driver);
            }
            _ => self.rare(event, stack, facts.site),
        }
    }

    #[inline(never)] // What is here would make the rest wait: it takes most of the registers.
    fn begin_steps(&mut self, begun: u32) {
        for _ in 0..begun {
            for device in self.devices.all.iter_mut().flatten() {
                device.step_boundary();
            }
            self.host.step_boundary();
            self.step += 1;
            let come = self.alarms.at_step(self.step);
            self.take_instants(&come);
        }
        self.steps_have_begun();
    }

    #[inline(never)] // As above.
    fn rare(&mut self, event: &Event, stack: StackId, site: SiteId) {
        match event.kind {
            EventKind::PHASE_BEGIN | EventKind::PHASE_END => {
                let held = self.devices.held();
                self.phases.event(event, self.time_ns, self.symbols.definitions(), held);
            }
            EventKind::TORCH_MEMORY => self.torch_said(event),
            EventKind::HOLDERS | EventKind::HOLDER => self.looked(event),
            EventKind::MARK => self.mark(event),
            EventKind::BLOCK_OOM => self.oom(event, stack),
            EventKind::BLOCK_FREE_COMPLETED
            | EventKind::SEGMENT_ALLOC
            | EventKind::SEGMENT_FREE
            | EventKind::SEGMENT_MAP
            | EventKind::SEGMENT_UNMAP => {
                let when = (self.time_ns, self.step);
                device_of(&mut self.devices, event.device, self.step).tracked(event, stack, when);
            }
            EventKind::TRACKER => self.tracker = TrackerState::from_number(event.aux[0]).or(self.tracker),
            EventKind::MEMORY_SAMPLE => self.sample(event),
            kind if kind.is_driver_call() => self.driver_call(event, stack, site),
            _ => {}
        }
    }

    fn sample(&mut self, event: &Event) {
        if event.result == 0 && !event.in_flight && event.device != NO_DEVICE {
            let device = device_of(&mut self.devices, event.device, self.step);
            device.ledger.sample(event, self.time_ns);
        }
    }
}
