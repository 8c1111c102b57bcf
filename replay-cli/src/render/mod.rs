//! Output formats: one file or folder for each, and a row in a table.
//!
//! A [`Renderer`] writes one type of document: the [`Report`] of `replay`, the
//! [`ComparisonDocument`] of `compare`, the [`CheckDocument`] of `check`. Commands know outputs
//! only by the tables below: `--format` takes the names in them, and the first row is the default.
//! To add an output, add its file here and a row to the table of each document that it can write.

#[cfg(test)]
mod extension_tests;
pub(crate) mod history_words;
pub(crate) mod job_words;
pub(crate) mod json;
mod junit;
pub(crate) mod markdown;
mod outcome;
pub(crate) mod text;
pub(crate) mod wording;

use std::io::Write;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
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
pub(crate) use text::TextRenderer;
use text::{SECTIONS, SectionRow};

/// The formats of `replay`, the default first.
pub(crate) static REPORT_RENDERERS: &[&dyn ReportRenderer] = &[&TextRenderer, &JsonRenderer];
/// The formats of `compare`, the default first.
pub(crate) static COMPARISON_RENDERERS: &[&dyn Renderer<ComparisonDocument>] =
    &[&TextRenderer, &JsonRenderer];
/// The formats of `whatif`, the default first.
pub(crate) static WHATIF_RENDERERS: &[&dyn Renderer<WhatIfAnswers>] = &[&TextRenderer, &JsonRenderer];
/// The formats of `fit`, the default first.
pub(crate) static FIT_RENDERERS: &[&dyn Renderer<SmallestCard>] = &[&TextRenderer, &JsonRenderer];
pub(crate) static LARGEST_RENDERERS: &[&dyn Renderer<LargestAnswer>] = &[&TextRenderer, &JsonRenderer];
/// The formats of `ranks`, the default first.
pub(crate) static JOB_RENDERERS: &[&dyn Renderer<JobReport>] = &[&TextRenderer, &JsonRenderer];
/// The formats of `check`, the default first.
pub(crate) static CHECK_RENDERERS: &[&dyn Renderer<CheckDocument>] =
    &[&TextRenderer, &JsonRenderer, &MarkdownRenderer, &JunitRenderer];

/// A value of `--format`.
pub(crate) trait OutputFormat: Sync {
    /// The value of `--format` that selects it.
    fn name(&self) -> &'static str;

    /// One line of help for that value.
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
    /// `--all`: lists are not shortened.
    pub(crate) all_rows: bool,
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
        Self {
            sections: &[],
            section_rows: SECTIONS,
            full_stacks: false,
            all_rows: false,
            source: &DEFAULT_SOURCE,
            style,
        }
    }
}

/// Parses the value of `--format`: the name of a row of this table.
pub(crate) fn format_parser<R>(table: &'static [&'static R]) -> impl TypedValueParser<Value = &'static R>
where
    R: OutputFormat + ?Sized + 'static,
{
    let values = table.iter().map(|format| PossibleValue::new(format.name()).help(format.help()));
    PossibleValuesParser::new(values)
        .try_map(|name| find_format(table, &name).ok_or_else(|| format!("unknown format {name}")))
}

/// The row that `--format` or its short form `--json` selects, else the first one.
pub(crate) fn select_format<R>(
    table: &'static [&'static R],
    format: Option<&'static R>,
    is_json: bool,
) -> &'static R
where
    R: OutputFormat + ?Sized,
{
    let json = || find_format(table, JsonRenderer.name()).filter(|_| is_json);
    format.or_else(json).unwrap_or(table[0])
}

/// The row of this name.
pub(crate) fn find_format<R>(table: &'static [&'static R], name: &str) -> Option<&'static R>
where
    R: OutputFormat + ?Sized,
{
    table.iter().copied().find(|format| format.name() == name)
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
    fn json_flag_selects_json_and_first_row_is_default() {
        assert_eq!(select_format(REPORT_RENDERERS, None, false).name(), "text");
        assert_eq!(select_format(COMPARISON_RENDERERS, None, true).name(), "json");
        assert_eq!(
            select_format(CHECK_RENDERERS, find_format(CHECK_RENDERERS, "junit"), false).name(),
            "junit"
        );
    }

    #[test]
    fn format_names_are_unique_in_each_table() {
        fn names<R: OutputFormat + ?Sized>(table: &[&R]) -> Vec<&'static str> {
            table.iter().map(|format| format.name()).collect()
        }
        for mut names in [names(REPORT_RENDERERS), names(COMPARISON_RENDERERS), names(CHECK_RENDERERS)] {
            let rows = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), rows, "{names:?}");
        }
    }
}
