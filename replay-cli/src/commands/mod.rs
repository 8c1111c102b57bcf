//! One file per command.

pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod info;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod symbolize;
