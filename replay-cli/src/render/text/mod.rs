//! Reports as text, for terminals, logs and mail. One file or folder per part.
//!
//! The text needs no colour to be read, fits the width of the terminal, and prints what is unknown
//! as `unknown`. Sections are rows of [`SECTIONS`].

mod check;
mod checks;
mod compare;
mod fit;
mod header;
mod history;
mod job;
mod largest;
mod ranks;
mod sections;
mod sites;
mod snapshot;
mod summary;
mod whatif;

use std::io::Write;

use gpumemtrace_multirun::{CheckDocument, ComparisonDocument, JobReport};
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::report::Omitted;
use gpumemtrace_whatif::LargestAnswer;

use super::answers::{SmallestCard, WhatIfAnswers};
use super::presented::PresentedReport;
use super::renderer::{OutputFormat, RenderContext, Renderer, ReportNeeds, ReportRenderer};
use crate::terminal::format::put_line;
use crate::terminal::layout::finish_text;
pub(crate) use check::render_written_budget;
pub(crate) use history::render_archive;
pub(crate) use job::render_job;
pub(crate) use sections::{SECTIONS, SectionRow};
pub(crate) use sites::{SiteFormatter, sources_of_report};

/// The longest list of call sites without `--top`. Other rows are summed up.
const MAX_LISTED: usize = 20;

/// The format `text`, the default.
pub(crate) struct TextRenderer;

impl OutputFormat for TextRenderer {
    fn name(&self) -> &'static str {
        "text"
    }

    fn help(&self) -> &'static str {
        "Text"
    }
}

impl Renderer<PresentedReport> for TextRenderer {
    fn render(
        &self,
        report: &PresentedReport,
        context: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        Ok(out.write_all(render_report(report, context).as_bytes())?)
    }
}

impl ReportRenderer for TextRenderer {
    fn report_needs<'a>(&self, context: &RenderContext<'a>) -> ReportNeeds<'a> {
        let names = NameScope {
            sections: context.sections,
            max_sites: context.style.row_limit(MAX_LISTED),
            // Without `--stacks`, sections print native frames of stacks without Python frames.
            stacks: context.full_stacks || !context.sections.is_empty(),
            mixed: context.full_stacks,
        };
        ReportNeeds { only_asked_sections: false, names, truncated_lists: false }
    }
}

impl Renderer<ComparisonDocument> for TextRenderer {
    fn render(
        &self,
        document: &ComparisonDocument,
        context: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let style = context.style;
        let max_lines = style.row_limit(MAX_LISTED);
        let text = match document {
            ComparisonDocument::Traces(comparison) => {
                compare::render_comparison(comparison, max_lines, context.source, style)
            }
            ComparisonDocument::Ranks(ranks) => compare::ranks::render_ranks(ranks, max_lines, style),
        };
        Ok(out.write_all(text.as_bytes())?)
    }
}

impl Renderer<WhatIfAnswers> for TextRenderer {
    fn render(
        &self,
        answers: &WhatIfAnswers,
        context: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        Ok(out.write_all(whatif::render_answers(&answers.0, context.style).as_bytes())?)
    }
}

impl Renderer<JobReport> for TextRenderer {
    fn render(
        &self,
        job: &JobReport,
        context: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        Ok(out.write_all(render_job(job, context.style).as_bytes())?)
    }
}

impl Renderer<SmallestCard> for TextRenderer {
    fn render(
        &self,
        answer: &SmallestCard,
        context: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        Ok(out.write_all(fit::render_fit(&answer.0, context.style).as_bytes())?)
    }
}

impl Renderer<LargestAnswer> for TextRenderer {
    fn render(
        &self,
        answer: &LargestAnswer,
        context: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        Ok(out.write_all(largest::render_largest(answer, context.style).as_bytes())?)
    }
}

impl Renderer<CheckDocument> for TextRenderer {
    fn render(
        &self,
        document: &CheckDocument,
        context: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let text = match document {
            CheckDocument::One(check) => check::render_check(check, context.style),
            CheckDocument::Several(checks) => checks::render_checks(checks, context.style),
        };
        Ok(out.write_all(text.as_bytes())?)
    }
}

fn render_report(report: &PresentedReport, context: &RenderContext<'_>) -> String {
    let (sections, style) = (context.sections, context.style);
    let mut out = String::new();
    let mut sites = SiteFormatter::new(context.full_stacks, &report.traces, context.source);
    for trace in 0..report.traces.len() {
        if trace > 0 {
            out.push('\n');
        }
        header::render_header(&mut out, report, trace, style);
        if sections.is_empty() {
            summary::render_summary(&mut out, report, trace, style, &mut sites);
        }
        snapshot::render_snapshots(&mut out, report, trace, sections, style);
        for row in context.section_rows.iter().filter(|row| sections.contains(&row.section)) {
            out.push('\n');
            (row.render)(&mut out, report, trace, style, &mut sites);
        }
    }
    ranks::render_ranks(&mut out, report, style);
    sites.write_withheld(&mut out, style);
    if sections.is_empty() {
        out.push('\n');
        let flags: Vec<String> = context.section_rows.iter().map(|row| format!("--{}", row.flag)).collect();
        let details = format!("Details: {}; -v for the recording", flags.join(" "));
        put_line(&mut out, format_args!("{}", style.dim(&details)));
    }
    finish_text(&out, style)
}

/// The rows of a list that are not shown: their number and bytes. `omitted` were removed before.
fn sum_hidden_rows<T>(
    rows: &[T],
    most: usize,
    omitted: Option<Omitted>,
    bytes: impl Fn(&T) -> u64,
) -> (u64, u64) {
    let rest = rows.get(most..).unwrap_or_default();
    let out = omitted.unwrap_or_default();
    let sum = rest.iter().fold(out.bytes.unwrap_or(0), |sum, row| sum.saturating_add(bytes(row)));
    (rest.len() as u64 + out.count, sum)
}
