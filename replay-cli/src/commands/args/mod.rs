//! Options that several commands share.

pub(crate) mod display;
pub(crate) mod fail_on;
pub(crate) mod force;
pub(crate) mod jobs;
pub(crate) mod output_name;
pub(crate) mod trace;
