//! Call sites and stacks as text: short file names, source lines, your own code marked with `>`.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpumemtrace_replay::report::{FrameKind, Site, StackFrame, StackOrder, TraceInfo};

use crate::render::wording::sites::format_frame;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, put_line};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most frames of a stack without `--stacks`.
const MAX_FRAMES: usize = 24;
/// Largest source file that is read, in bytes.
const MAX_SOURCE_BYTES: u64 = 8 << 20;
/// Longest source line, in characters.
const MAX_SOURCE_CHARS: usize = 160;

/// Prints stacks and source lines. Each source file is read once.
pub(crate) struct SiteFormatter {
    /// `--stacks`: all frames, with native frames between Python frames.
    pub(crate) full_stacks: bool,
    /// Files that were changed after this are not shown: the run had other lines.
    ended: Option<SystemTime>,
    sources: HashMap<String, Option<Vec<String>>>,
}

impl SiteFormatter {
    /// For a report of these traces.
    pub(crate) fn new(full_stacks: bool, traces: &[TraceInfo]) -> Self {
        let ended = |trace: &TraceInfo| {
            let ended_unix_ns = trace.started_unix_ns?.checked_add(trace.duration_ns?)?;
            UNIX_EPOCH.checked_add(Duration::from_nanos(ended_unix_ns))
        };
        Self { full_stacks, ended: traces.iter().filter_map(ended).min(), sources: HashMap::new() }
    }

    /// The source line of a site without its indentation; `None` if the file cannot be read or was
    /// changed after the run, or if the line is empty.
    pub(crate) fn source_line(&mut self, site: &Site) -> Option<String> {
        let (file, line) = (site.file.as_ref()?, site.line?);
        let lines = self.sources.entry(file.clone()).or_insert_with(|| {
            let facts = std::fs::metadata(file).ok()?;
            let was_changed = || self.ended.zip(facts.modified().ok()).is_some_and(|(ended, at)| at > ended);
            if !facts.is_file() || facts.len() > MAX_SOURCE_BYTES || was_changed() {
                return None;
            }
            let text = String::from_utf8_lossy(&std::fs::read(file).ok()?).into_owned();
            Some(text.lines().map(str::to_owned).collect())
        });
        let text = lines.as_ref()?.get((line as usize).checked_sub(1)?)?.trim();
        let shown: String = escape_text(text).chars().take(MAX_SOURCE_CHARS).collect();
        (!shown.is_empty()).then_some(shown)
    }
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
