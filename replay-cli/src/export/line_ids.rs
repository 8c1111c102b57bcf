//! Ids of source lines, which stay the same when a line moves.

use gpumemtrace_replay::report::{Site, TraceInfo};

use crate::render::text::sources_of_report;
use crate::source::{SourceArgs, SourceReader};

/// Identifies the lines of the call sites of one trace by their text.
pub struct LineIds(SourceReader);

impl LineIds {
    /// Lines are read where reports may show them: in files that were not changed after the run.
    #[must_use]
    pub fn new(trace: &TraceInfo) -> Self {
        Self(sources_of_report(std::slice::from_ref(trace), &SourceArgs::default()))
    }

    /// The id of the line within its function; `None` if its text is unknown.
    pub fn of_site(&mut self, site: &Site) -> Option<String> {
        self.0.line_id(site)
    }
}
