//! Output formats: one file or folder for each, and a row in a table.
//!
//! A [`Renderer`] writes one type of document: the [`PresentedReport`] of `replay`, the
//! [`ComparisonDocument`] of `compare`, the [`CheckDocument`] of `check`. Commands know outputs
//! only by the tables below: `--format` takes the names in them, and the first row is the default.
//! To add an output, add its file here and a row to the table of each document that it can write.

mod answers;
#[cfg(test)]
mod extension_tests;
pub(crate) mod fleet_words;
pub(crate) mod json;
mod junit;
pub(crate) mod lake_words;
pub(crate) mod markdown;
mod outcome;
mod presented;
mod renderer;
pub(crate) mod text;
pub(crate) mod wording;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use gpumemtrace_fleet::{CheckDocument, ComparisonDocument, Fleet};
use gpumemtrace_whatif::LargestAnswer;

pub(crate) use answers::{SmallestCard, WhatIfAnswers};
pub(crate) use json::JsonRenderer;
pub(crate) use junit::JunitRenderer;
pub(crate) use markdown::MarkdownRenderer;
pub(crate) use presented::PresentedReport;
pub(crate) use renderer::{
    OutputFormat, RenderContext, Renderer, ReportNeeds, ReportRenderer, print_document,
};
pub(crate) use text::TextRenderer;

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
/// The formats of `summarize`, the default first.
pub(crate) static FLEET_RENDERERS: &[&dyn Renderer<Fleet>] = &[&TextRenderer, &JsonRenderer];
/// The formats of `check`, the default first.
pub(crate) static CHECK_RENDERERS: &[&dyn Renderer<CheckDocument>] =
    &[&TextRenderer, &JsonRenderer, &MarkdownRenderer, &JunitRenderer];

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
