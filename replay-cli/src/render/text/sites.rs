//! Call sites and stacks as text: short file names, source lines, your own code marked with `>`.

use std::time::{Duration, UNIX_EPOCH};

use gpumemtrace_replay::report::{FrameKind, Site, StackFrame, StackOrder, TraceInfo};

use crate::render::wording::sites::format_frame;
use crate::source::{SourceArgs, SourceReader};
use crate::terminal::format::{format_count, put_line};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most frames of a stack without `--stacks`.
const MAX_FRAMES: usize = 24;

/// Prints stacks and source lines.
pub(crate) struct SiteFormatter {
    /// `--stacks`: all frames, with native frames between Python frames.
    pub(crate) full_stacks: bool,
    pub(crate) sources: SourceReader,
}

impl SiteFormatter {
    /// For a report of these traces.
    pub(crate) fn new(full_stacks: bool, traces: &[TraceInfo], args: &SourceArgs) -> Self {
        Self { full_stacks, sources: sources_of_report(traces, args) }
    }

    /// The source line of a site, as [`SourceReader::line_of`] has it.
    pub(crate) fn source_line(&mut self, site: &Site) -> Option<String> {
        self.sources.line_of(site)
    }

    /// Prints why source lines are missing that could have been read.
    pub(crate) fn write_withheld(&self, out: &mut String, style: Style) {
        if let Some(withheld) = self.sources.withheld() {
            out.push('\n');
            put_line(out, format_args!("{}", style.dim(&withheld.describe())));
        }
    }
}

/// Reads the source lines of a report of these traces.
pub(crate) fn sources_of_report(traces: &[TraceInfo], args: &SourceArgs) -> SourceReader {
    let ended = |trace: &TraceInfo| {
        let ended_unix_ns = trace.started_unix_ns?.checked_add(trace.duration_ns?)?;
        UNIX_EPOCH.checked_add(Duration::from_nanos(ended_unix_ns))
    };
    let origins = traces.iter().map(|trace| (trace.path.as_str(), &trace.origin));
    SourceReader::new(origins, traces.iter().filter_map(ended).min(), args)
}

impl SiteFormatter {
    /// Prints the stack of a site, innermost frame first. Native frames are left out of a stack
    /// with Python frames, unless `--stacks` is given.
    pub(crate) fn write_stack(&self, out: &mut String, site: &Site, indent: &str, style: Style) {
        let has_python = site.stack.iter().any(|frame| frame.kind == FrameKind::Python);
        let is_shown =
            |frame: &&StackFrame| self.full_stacks || !has_python || frame.kind == FrameKind::Python;
        let shown: Vec<&StackFrame> = site.stack.iter().filter(is_shown).collect();
        let most = if self.full_stacks { shown.len() } else { MAX_FRAMES };
        for frame in shown.iter().take(most) {
            let text = format_frame(frame);
            let line =
                if frame.is_own { format!("> {HANG}{text}") } else { style.dim(&format!("  {HANG}{text}")) };
            put_line(out, format_args!("{indent}{line}"));
        }
        if shown.len() > most {
            put_line(out, format_args!("{indent}  ... {} more frames", shown.len() - most));
        }
        let native = site.stack.len() - shown.len();
        if native > 0 {
            put_line(
                out,
                format_args!(
                    "{indent}  ({} hidden; --stacks shows them)",
                    format_count(native as u64, "native frame")
                ),
            );
        }
        if self.full_stacks && site.stack_order == Some(StackOrder::Approximate) {
            put_line(out, format_args!("{indent}  (the order of Python and native frames is approximate)"));
        }
    }
}
