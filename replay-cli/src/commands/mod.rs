//! The subcommands: one file or folder each.

mod args;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod export;
pub(crate) mod fit;
pub(crate) mod history;
pub(crate) mod html;
pub(crate) mod info;
pub(crate) mod leak_candidates;
pub(crate) mod ranks;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod serve_metrics;
mod setting_predictions;
pub(crate) mod shell;
pub(crate) mod simulate;
pub(crate) mod symbolize;
pub(crate) mod whatif;
