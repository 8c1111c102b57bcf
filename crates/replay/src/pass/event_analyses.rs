//! The table of the analyses of rare events, and their dispatch.
//!
//! An event costs one lookup by kind, and one virtual call per analysis that takes it.

use std::any::Any;
use std::sync::Arc;

use gpumemtrace_format::{Event, EventKind};

use crate::event_analysis::{AnalysisRow, EventAnalysis, EventContext};
use crate::report::{Section, SectionData};
use crate::state::async_pools::AsyncPools;
use crate::state::holder_scans::HolderScans;
use crate::state::mps_samples::MpsSamples;
use crate::timeline::marks::MarkLog;

/// The analyses of every trace, in the order in which they take an event.
static EVENT_ANALYSES: &[AnalysisRow] = &[
    AnalysisRow { section: Section::Timeline, start: || Box::<MarkLog>::default() },
    AnalysisRow { section: Section::Timeline, start: || Box::<MpsSamples>::default() },
    AnalysisRow { section: Section::Leaks, start: || Box::<HolderScans>::default() },
    AnalysisRow { section: Section::Fragmentation, start: || Box::<AsyncPools>::default() },
];

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
    pub(crate) fn extra_rows(
        &self,
        trace: usize,
        start_ns: u64,
    ) -> impl Iterator<Item = (&'static str, Arc<dyn SectionData>)> + '_ {
        self.all.iter().filter_map(move |(section, one)| match section {
            Section::Extra(key) => Some((*key, one.section(trace, start_ns)?)),
            _ => None,
        })
    }
}
