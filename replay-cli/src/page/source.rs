//! The source lines that the page shows.

use gpumemtrace_replay::report::{Site, TraceInfo};

use crate::render::text::sources_of_report;
use crate::source::{SourceArgs, SourceReader};

/// Reads source lines, unless the user wants none.
pub(super) struct SourceLines {
    reader: Option<SourceReader>,
}

impl SourceLines {
    pub(super) fn new(wanted: Option<&SourceArgs>, traces: &[TraceInfo]) -> Self {
        Self { reader: wanted.map(|args| sources_of_report(traces, args)) }
    }

    /// The source line of a site, if it may be shown and can be read.
    pub(super) fn line_of(&mut self, site: &Site) -> Option<String> {
        self.reader.as_mut()?.line_of(site)
    }

    /// Why source lines are missing, as a sentence.
    pub(super) fn missing(&self) -> Option<String> {
        match &self.reader {
            None => Some("Source lines are not embedded (--no-source).".to_owned()),
            Some(reader) => reader.withheld().map(|withheld| format!("{}.", withheld.describe())),
        }
    }
}
