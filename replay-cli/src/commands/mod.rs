//! The subcommands: one file or folder each.

pub(crate) mod check;
pub(crate) mod compare;
mod display_args;
pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod export;
pub(crate) mod export_folder;
pub(crate) mod fit;
pub(crate) mod html;
pub(crate) mod info;
pub(crate) mod leak_candidates;
pub(crate) mod replay;
pub(crate) mod run;
mod setting_predictions;
pub(crate) mod shell;
pub(crate) mod simulate;
pub(crate) mod symbolize;
mod trace_args;
pub(crate) mod whatif;
