//! Analyses of rare events, and the table of them.
//!
//! The pass handles block allocations and frees itself. Every other event goes to the analyses that
//! take its kind. To add an analysis, write one file that implements [`EventAnalysis`], and add one
//! row to [`EVENT_ANALYSES`]. Its rows appear in JSON under the key of its section; the command's
//! table of sections adds the text. `replay-cli/src/render/extension_tests.rs` adds an analysis and
//! an output in this way.
//!
//! An event costs one lookup by kind, and one virtual call per analysis that takes it.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use gpumemtrace_format::{Event, EventKind};

use crate::callsite::symbols::SiteId;
use crate::ingest::definitions::Definitions;
use crate::pass::Analysis;
use crate::report::{Section, SectionData};
use crate::state::async_pools::AsyncPools;
use crate::state::device_states::DeviceStates;
use crate::state::holder_scans::HolderScans;
use crate::state::mps_samples::{MetalLevels, MpsSamples};
use crate::timeline::event_time::EventTime;
use crate::timeline::marks::MarkLog;

/// The analyses of every trace, in the order in which they take an event.
static EVENT_ANALYSES: &[AnalysisRow] = &[
    AnalysisRow { section: Section::Timeline, start: || Box::<MarkLog>::default() },
    AnalysisRow { section: Section::Timeline, start: || Box::<MpsSamples>::default() },
    AnalysisRow { section: Section::Leaks, start: || Box::<HolderScans>::default() },
    AnalysisRow { section: Section::Fragmentation, start: || Box::<AsyncPools>::default() },
];

/// An analysis and its section.
#[derive(Clone, Copy, Debug)]
pub struct AnalysisRow {
    /// The section that its rows are in; [`Section::Extra`] for a key of its own.
    pub section: Section,
    /// Creates the analysis at the start of a trace.
    pub start: fn() -> Box<dyn EventAnalysis>,
}

/// An analysis that takes events other than block allocations and frees.
pub trait EventAnalysis: Any + Debug {
    /// True for the kinds of event that it takes. Called once per kind and trace.
    fn takes(&self, kind: EventKind) -> bool;

    /// Takes an event. Times ascend.
    fn on_event(&mut self, event: &Event, context: &EventContext<'_>);

    /// Forgets all events so far: the analysed part of the run begins here.
    fn restart(&mut self) {}

    /// Its row of an [`Section::Extra`] section; `trace` is the index in `traces`. `None` for no
    /// row.
    fn section(&self, _trace: usize, _analysis: &Analysis) -> Option<Arc<dyn SectionData>> {
        None
    }
}

/// The state of the pass at an event.
pub struct EventContext<'a> {
    /// The time of the event, never before that of an earlier one.
    pub time_ns: u64,
    /// The number of steps begun.
    pub step: u32,
    /// Code objects, stacks and modules of the trace.
    pub definitions: &'a Definitions,
    pub(super) devices: &'a DeviceStates,
}

impl EventContext<'_> {
    pub(crate) fn time(&self) -> EventTime {
        EventTime { time_ns: self.time_ns, step: self.step }
    }

    /// The call site of the live block at an address.
    pub(crate) fn site_of_live_block(&self, device: u8, addr: u64) -> Option<SiteId> {
        self.devices.all.get(usize::from(device))?.as_ref()?.torch.site_at(addr)
    }

    /// The levels of the only device with memory, on Metal.
    pub(crate) fn only_metal_device(&self) -> Option<MetalLevels> {
        self.devices.only_metal_device()
    }
}

/// The running analyses of one trace.
#[derive(Debug)]
pub(crate) struct RunningAnalyses {
    all: Vec<(Section, Box<dyn EventAnalysis>)>,
    /// For each kind of event, a bit for each analysis that takes it.
    takers: Box<[u64; 256]>,
}

impl RunningAnalyses {
    /// Starts the analyses of the table, and `more`; at most 64 in all.
    pub(crate) fn start(more: &[AnalysisRow]) -> Self {
        let rows = EVENT_ANALYSES.iter().chain(more).take(u64::BITS as usize);
        let all: Vec<(Section, Box<dyn EventAnalysis>)> =
            rows.map(|row| (row.section, (row.start)())).collect();
        let mut takers = Box::new([0; 256]);
        for (kind, bits) in (0..=u8::MAX).zip(takers.iter_mut()) {
            for (at, (_, analysis)) in all.iter().enumerate() {
                *bits |= u64::from(analysis.takes(EventKind(kind))) << at;
            }
        }
        Self { all, takers }
    }

    /// Passes an event to the analyses that take its kind.
    #[inline]
    pub(crate) fn on_event(&mut self, event: &Event, context: &EventContext<'_>) {
        let mut bits = self.takers[usize::from(event.kind.0)];
        while bits != 0 {
            self.all[bits.trailing_zeros() as usize].1.on_event(event, context);
            bits &= bits - 1;
        }
    }

    pub(crate) fn restart(&mut self) {
        self.all.iter_mut().for_each(|(_, analysis)| analysis.restart());
    }

    /// The analysis of this type; `None` if it is not in the table.
    pub(crate) fn find<T: EventAnalysis>(&self) -> Option<&T> {
        self.all.iter().find_map(|(_, analysis)| {
            let analysis: &dyn Any = &**analysis;
            analysis.downcast_ref()
        })
    }

    /// The rows of [`Section::Extra`] sections, with their keys.
    pub(crate) fn extra_rows<'a>(
        &'a self,
        trace: usize,
        analysis: &'a Analysis,
    ) -> impl Iterator<Item = (&'static str, Arc<dyn SectionData>)> + 'a {
        self.all.iter().filter_map(move |(section, one)| match section {
            Section::Extra(key) => Some((*key, one.section(trace, analysis)?)),
            _ => None,
        })
    }
}
