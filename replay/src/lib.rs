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

mod ahead;
pub mod analysis;
pub mod async_pools;
pub mod backward;
pub mod bins;
pub mod book;
pub mod budget;
mod callers;
pub mod category;
pub mod cohorts;
pub mod compare;
pub mod definitions;
pub mod device;
pub mod driver;
pub mod frag;
mod frames;
mod graphs;
pub mod growth;
mod holders;
mod idmap;
pub mod input;
pub mod instants;
pub mod keyed;
pub mod leaks;
pub mod ledger;
pub mod linetable;
pub mod live;
pub mod live_blocks;
mod live_steps;
pub mod looks;
pub mod marks;
pub mod merge;
mod metal;
pub mod naming;
pub mod oom;
mod oom_step;
pub mod origin;
pub mod owners;
pub mod peak;
pub mod peak_blocks;
pub mod peak_phases;
pub mod phases;
pub mod ranges;
pub mod ranks;
pub mod reading;
pub mod report;
pub mod requests;
pub mod reserved;
pub mod sections;
pub mod segments;
pub mod selection;
pub mod series;
mod silent;
pub mod step_peaks;
pub mod steps;
pub mod stream;
pub mod streams;
mod suspects;
pub mod symbols;
pub mod tally;
pub mod torch_memory;
pub mod trend;
pub mod units;
pub mod verdicts;
pub mod when;
pub mod words;

pub use analysis::{Analysis, Asked, analyse, analyse_as};
pub use input::{Input, RingFile};
pub use peak_phases::analyse_for_peak;
pub use report::Report;
pub use sections::{Section, report};
pub use streams::StreamId;
pub use units::Units;
pub use when::When;
