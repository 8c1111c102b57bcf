//! What an output implements: [`Renderer`] and [`ReportRenderer`], and what it gets.

use std::io::Write;

use gpumemtrace_replay::Section;
use gpumemtrace_replay::callsite::NameScope;

use super::presented::PresentedReport;
use super::text::{SECTIONS, SectionRow};
use crate::source::{SourceArgs, SourceScope};
use crate::terminal::stdout::{colored_stdout, stdout};
use crate::terminal::style::Style;

/// An output with a name: `json` for the flag `--json`.
pub(crate) trait OutputFormat: Sync {
    /// The flag that selects it, without dashes.
    fn name(&self) -> &'static str;

    /// One line of help for that flag.
    fn help(&self) -> &'static str;
}

/// Writes documents of one type in a format.
pub(crate) trait Renderer<Document>: OutputFormat {
    /// True if all native addresses in the document must be symbolized. Otherwise only those are
    /// that the command compares or filters by name. Reports use [`ReportNeeds::names`] instead.
    fn needs_all_names(&self) -> bool {
        false
    }

    /// Writes the whole document without flushing. Returns errors of `out`.
    fn render(
        &self,
        document: &Document,
        context: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()>;
}

/// Writes reports, and declares how they must be prepared.
pub(crate) trait ReportRenderer: Renderer<PresentedReport> {
    /// The preparation that [`Renderer::render`] expects with the same context.
    fn report_needs<'a>(&self, context: &RenderContext<'a>) -> ReportNeeds<'a>;
}

/// How a report must be prepared for a renderer.
pub(crate) struct ReportNeeds<'a> {
    /// The report must have only the requested sections. Otherwise it has all of them.
    pub(crate) only_asked_sections: bool,
    /// Which native addresses are symbolized. Each costs a lookup in the files of a library.
    pub(crate) names: NameScope<'a>,
    /// Rows beyond `--top` are removed from all lists. Otherwise the renderer gets all rows and
    /// sums up those that it hides.
    pub(crate) truncated_lists: bool,
}

/// The user's choices for one output.
pub(crate) struct RenderContext<'a> {
    /// Requested sections of a report. If empty, text prints the summary, JSON all sections.
    pub(crate) sections: &'a [Section],
    /// `--stacks`: stacks in full, with native frames.
    pub(crate) full_stacks: bool,
    /// The sections that text can print.
    pub(crate) section_rows: &'static [SectionRow],
    /// Where source lines may come from.
    pub(crate) source: &'a SourceArgs,
    /// Colours, width, and rows per list.
    pub(crate) style: Style,
}

/// Source lines of the user's own runs only.
static DEFAULT_SOURCE: SourceArgs =
    SourceArgs { folders: Vec::new(), scope: SourceScope::All, trace_files: Vec::new() };

impl RenderContext<'_> {
    /// The defaults: no sections, shortened stacks and lists.
    pub(crate) fn new(style: Style) -> Self {
        Self { sections: &[], section_rows: SECTIONS, full_stacks: false, source: &DEFAULT_SOURCE, style }
    }
}

/// Renders a document to stdout.
pub(crate) fn print_document<Document, R>(
    renderer: &R,
    document: &Document,
    context: &RenderContext<'_>,
) -> anyhow::Result<()>
where
    R: Renderer<Document> + ?Sized,
{
    let mut out = if context.style.color { colored_stdout() } else { stdout() };
    renderer.render(document, context, &mut out)?;
    out.flush()?;
    Ok(())
}
