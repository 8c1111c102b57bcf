//! Output formats: one file or folder for each, and a row in a table.
//!
//! A [`Renderer`] writes one type of document: the [`PresentedReport`] of `replay`, the
//! [`ComparisonDocument`] of `compare`, the [`CheckDocument`] of `check`. Commands know outputs
//! only by the tables below: the first row is the default, and each other one has a flag of its
//! name.
//! To add an output, add its file here and a row to the table of each document that it can write.

mod answers;
#[cfg(test)]
mod extension_tests;
pub(crate) mod history_words;
pub(crate) mod job_words;
pub(crate) mod json;
mod junit;
pub(crate) mod markdown;
mod outcome;
mod output_choice;
mod presented;
mod renderer;
pub(crate) mod text;
pub(crate) mod wording;

use gpumemtrace_multirun::{CheckDocument, ComparisonDocument, JobReport};
use gpumemtrace_whatif::LargestAnswer;

pub(crate) use answers::{SmallestCard, WhatIfAnswers};
pub(crate) use json::JsonRenderer;
pub(crate) use junit::JunitRenderer;
pub(crate) use markdown::MarkdownRenderer;
pub(crate) use output_choice::{OutputChoice, OutputTable};
pub(crate) use presented::PresentedReport;
pub(crate) use renderer::{
    OutputFormat, RenderContext, Renderer, ReportNeeds, ReportRenderer, print_document,
};
pub(crate) use text::TextRenderer;

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
    PresentedReport: dyn ReportRenderer = &[&TextRenderer, &JsonRenderer];
    ComparisonDocument: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
    CheckDocument: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
    WhatIfAnswers: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
    SmallestCard: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
    LargestAnswer: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
    JobReport: dyn Renderer<Self> = &[&TextRenderer, &JsonRenderer];
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
            [names(PresentedReport::rows()), names(ComparisonDocument::rows()), names(CheckDocument::rows())]
        {
            let rows = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), rows, "{names:?}");
        }
    }
}
