//! Text for terminals: numbers, colours, width, charts. Nothing here knows a report.

pub(crate) mod chart;
pub(crate) mod escape;
pub(crate) mod format;
pub(crate) mod layout;
pub(crate) mod marks;
pub(crate) mod output_file;
pub(crate) mod paths;
pub(crate) mod status_line;
pub(crate) mod stderr;
pub(crate) mod stdout;
pub(crate) mod style;
pub(crate) mod units;
