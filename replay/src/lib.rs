//! The analyses of gpumemtrace: functions from the bytes of a trace to a report.
//!
//! [`analyse`] reads a trace once and returns an [`Analysis`]; [`report()`] turns one or several of them into a [`Report`].
//! The crate opens no files, prints nothing and has no unsafe code. Memory grows with the live blocks and with the distinct
//! stacks of a trace, not with its events. What a trace does not tell is `None` in a report.
#![forbid(unsafe_code)]

mod assemble;
pub mod budget;
pub mod callsite;
pub mod compare;
mod fragmentation;
pub mod ingest;
mod leak;
mod oom;
mod pass;
mod peak;
mod ranks;
pub mod report;
pub mod state;
mod timeline;
mod util;
mod verdicts;

pub use assemble::filter::{SiteFilter, keep_sites, truncate_lists};
pub use assemble::report;
pub use ingest::{Input, RingFile};
pub use leak::{BlocksOfLeak, BlocksOfSite, blocks_of_leaks, leaks};
pub use pass::follow::{DeviceBytes, GrownSite, RunFollower, RunView};
pub use pass::stream_filter::StreamId;
pub use pass::{Analysis, AnalysisOptions, analyse, analyse_with};
pub use peak::add_peak_blocks;
pub use peak::by_phase::analyse_for_peak;
pub use report::display::Units;
pub use report::{Report, Section};
pub use timeline::time_spec::TimeSpec;
