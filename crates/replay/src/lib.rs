//! The analyses of gpumemtrace: functions from the bytes of a trace to a report of typed values.
//!
//! [`analyse`] reads a trace once and returns an [`Analysis`]; [`report()`] turns one or several of
//! them into a [`Report`]. The crate opens no files, prints nothing and has no unsafe code. Memory
//! grows with the live blocks and with the distinct stacks of a trace, not with its events. Values
//! that a trace does not contain are `None` in a report. User-facing sentences are made in the
//! command.
//!
//! The modules form layers, and each imports only those above it in this list, which
//! `scripts/style` checks.
//!
//! 1. `util`: ids, containers, saturating sums.
//! 2. `report`: the values of a report.
//! 3. `ingest`: from bytes to definitions and to events in order.
//! 4. `callsite`: from stacks to call sites and their names.
//! 5. `event_analysis`: the interface of analyses that take rare events.
//! 6. `timeline`: steps, phases and marks, and series of values over them.
//! 7. `state`: live sets, driver memory, segments, pools.
//! 8. `fragmentation`: the causes of unused reserved memory, from that state.
//! 9. `device`: the state of one device, and its gaps over the run.
//! 10. `pass`: one pass over the events, and its result, [`Analysis`].
//! 11. `leak`, `peak`, then `verdicts`, `compare`, `budget`: findings from that result.
//! 12. `walk`: the events again, for exports.
//! 13. `assemble`: the report.
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
mod walk;

pub use crate::{
    assemble::filter::{SiteFilter, keep_sites, truncate_lists},
    assemble::report,
    assemble::run_history::{AllocatorState, BlockHistory, DeviceHistory, RunHistory},
    assemble::symbolize::{symbolize_report, symbolize_sites},
    device::keyframes::KeyframeReason,
    event_analysis::{AnalysisRow, EventAnalysis, EventContext},
    ingest::{Input, RingFile},
    leak::blocks::blocks_of_leaks,
    pass::analysis::Analysis,
    pass::follow::RunFollower,
    pass::options::AnalysisOptions,
    pass::stream_filter::StreamId,
    pass::{analyse, analyse_with, analyse_with_head},
    peak::add_peak_blocks,
    peak::by_phase::analyse_for_peak,
    report::{Report, Section},
    state::driver::MemoryPlace,
    state::driver::totals::MemoryByPlace,
    state::sleeping::SleepingSegments,
    timeline::time_spec::TimeSpec,
    util::spread::{Spread, lower_median},
    walk::live_segments::LiveSegments,
};
