//! Output formats: one file or folder for each, and a row in a table.
//!
//! A [`Renderer`] writes one type of document: the [`Report`] of `replay`, the
//! [`ComparisonDocument`] of `compare`, the [`CheckDocument`] of `check`. Commands know outputs
//! only by the tables below: the first row is the default, and each other one has a flag of its
//! name.
//! To add an output, add its file here and a row to the table of each document that it can write.

#[cfg(test)]
mod extension_tests;
pub(crate) mod history_words;
pub(crate) mod job_words;
pub(crate) mod json;
mod junit;
pub(crate) mod markdown;
mod outcome;
mod output_choice;
pub(crate) mod text;
pub(crate) mod wording;

use std::io::Write;

use gpumemtrace_multirun::{CheckDocument, ComparisonDocument, JobReport};
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::{Report, Section};
use gpumemtrace_whatif::{LargestAnswer, WhatIfAnswer};
use serde::{Serialize, Serializer};

use crate::source::{SourceArgs, SourceScope};
use crate::terminal::stdout::{colored_stdout, stdout};
use crate::terminal::style::Style;
pub(crate) use json::JsonRenderer;
pub(crate) use junit::JunitRenderer;
pub(crate) use markdown::MarkdownRenderer;
pub(crate) use output_choice::{OutputChoice, OutputTable};
pub(crate) use text::TextRenderer;
use text::{SECTIONS, SectionRow};

/// The outputs of a document, the default first.
macro_rules! outputs {
    ($($document:ty: $renderer:ty = $rows:expr;)*) => {$(
        impl OutputTable for $document {
            type Renderer = $renderer;

            fn rows() -> &'static [&'static Self::Renderer] {
                $rows
            }
        }
    )*};
}

outputs! {
    Report: dyn ReportRenderer = &[&TextRenderer, &JsonRenderer];
    ComparisonDocument: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
    CheckDocument: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
    WhatIfAnswers: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
    SmallestCard: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
    LargestAnswer: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
    JobReport: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
}

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
pub(crate) trait ReportRenderer: Renderer<Report> {
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

/// Predictions of `whatif`, for each trace.
pub(crate) struct WhatIfAnswers(pub(crate) Vec<WhatIfAnswer>);

impl Serialize for WhatIfAnswers {
    /// The answer itself if there is only one, else a list.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [answer] => answer.serialize(serializer),
            answers => answers.serialize(serializer),
        }
    }
}

/// The answer of `fit`: for each setting the smallest card, and the largest that is too small.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct SmallestCard(pub(crate) WhatIfAnswer);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_names_are_unique_in_each_table() {
        fn names<R: OutputFormat + ?Sized>(table: &[&R]) -> Vec<&'static str> {
            table.iter().map(|format| format.name()).collect()
        }
        for mut names in
            [names(Report::rows()), names(ComparisonDocument::rows()), names(CheckDocument::rows())]
        {
            let rows = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), rows, "{names:?}");
        }
    }
}
