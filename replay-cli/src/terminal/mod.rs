//! What a terminal shows.

pub(crate) mod chart;
pub(crate) mod layout;
pub(crate) mod paths;
pub(crate) mod style;
