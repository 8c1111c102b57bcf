//! One file per command.

mod by_steps;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod info;
mod look;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod shell;
pub(crate) mod suspects;
pub(crate) mod symbolize;
