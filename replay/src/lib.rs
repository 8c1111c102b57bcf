//! The analyses of gpumemtrace: functions from the bytes of a trace to a report of typed values.
//!
//! [`analyse`] reads a trace once and returns an [`Analysis`]; [`report()`] turns one or several of
//! them into a [`Report`]. The crate opens no files, prints nothing and has no unsafe code. Memory
//! grows with the live blocks and with the distinct stacks of a trace, not with its events. Values
//! that a trace does not contain are `None` in a report. User-facing sentences are made in the
//! command.
#![forbid(unsafe_code)]

mod assemble;
pub mod budget;
pub mod callsite;
pub mod compare;
mod device;
mod event_analysis;
mod fragmentation;
pub mod ingest;
mod leak;
mod pass;
mod peak;
pub mod report;
mod state;
mod timeline;
mod util;
mod verdicts;

pub use crate::{
    assemble::filter::{SiteFilter, keep_sites, truncate_lists},
    assemble::report,
    assemble::symbolize::{symbolize_report, symbolize_sites},
    event_analysis::{AnalysisRow, EventAnalysis, EventContext},
    ingest::{Input, RingFile},
    leak::blocks::{BlocksOfLeak, BlocksOfSite, blocks_of_leaks},
    pass::analysis::Analysis,
    pass::follow::{DeviceBytes, GrownSite, RunFollower, RunView},
    pass::options::AnalysisOptions,
    pass::stream_filter::StreamId,
    pass::{analyse, analyse_with},
    peak::add_peak_blocks,
    peak::by_phase::analyse_for_peak,
    report::{Report, Section},
    state::driver::MemoryPlace,
    state::driver::totals::MemoryByPlace,
    timeline::time_spec::TimeSpec,
};
