//! The analyses of gpumemtrace: from a trace to answers.
//!
//! Constraint: a trace may hold billions of events, be damaged, or be made by an attacker, and a number in a report is
//! believed. Consequence: everything is a function from bytes to values, in memory proportional to what was live at once and
//! to the number of distinct stacks; nothing here opens files, prints or is unsafe; every analysis states its definition
//! where it is made; and what is not known is `None`, never a guess.
//!
//! Reading order: [`input`], [`reading`] and [`stream`] (events in order), [`definitions`], [`linetable`], [`origin`] and [`symbols`]
//! (whose line), [`steps`] (what a step is), [`driver`], [`book`] and [`device`] (who holds what), [`analysis`] (the one pass), then
//! the answers: [`leaks`] (with `graphs`) and [`growth`], [`frag`], [`peak`] (with [`category`]), [`sections`]; [`mod@report`] is their form, in which [`naming`] (with [`merge`]) names
//! native frames. [`live`] is for a run that goes on, [`mod@compare`] for two that have ended, [`budget`] for what one may need.
#![forbid(unsafe_code)]

pub mod assemble;
pub mod budget;
pub mod callsite;
pub mod compare;
pub mod fragmentation;
pub mod ingest;
pub mod leak;
pub mod oom;
pub mod pass;
pub mod peak;
pub mod ranks;
pub mod report;
pub mod state;
pub mod timeline;
pub mod util;
pub mod verdicts;

pub use assemble::{Section, report};
pub use ingest::{Input, RingFile};
pub use pass::stream_filter::StreamId;
pub use pass::{Analysis, Asked, analyse, analyse_as};
pub use peak::by_phase::analyse_for_peak;
pub use report::Report;
pub use report::display::units::Units;
pub use timeline::time_spec::When;

// The old paths, until the public interface is cut.
pub use {
    assemble as sections, assemble::filter as selection, callsite::code_origin as origin,
    callsite::py_linetable as linetable, callsite::symbolizer as naming, callsite::symbols, ingest as input,
    ingest::definitions, ingest::merger as stream, leak as leaks, pass::follow as live,
    report::display::units, report::display::vocabulary as words, state::driver,
};
