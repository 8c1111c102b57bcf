//! Adds an analysis, its section and an output, through the same tables as the built-in ones.
//!
//! The analysis counts the driver calls of each device. Its section appears in JSON under its key
//! and in text under its flag. The output writes CSV, and `--csv` selects it.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use clap::{Args as _, FromArgMatches as _};
use gpumemtrace_format::{Event, EventKind, NodeId};
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::report::SectionData;
use gpumemtrace_replay::{
    Analysis, AnalysisOptions, AnalysisRow, EventAnalysis, EventContext, Report, Section, report,
};
use serde::Serialize;

use super::text::{SECTIONS, SectionRow, SiteFormatter};
use super::{
    JsonRenderer, OutputChoice, OutputFormat, OutputTable, PresentedReport, RenderContext, Renderer,
    ReportNeeds, ReportRenderer, TextRenderer,
};
use crate::symbolize::Resolver;
use crate::terminal::format::put_line;
use crate::terminal::style::{ColorChoice, Style};

use gpumemtrace_synthetic::Synthetic;

/// The analysis: one file, with its row.
mod driver_calls {
    use super::*;

    pub(super) const SECTION: Section = Section::Extra("driver_calls");
    pub(super) const ROW: AnalysisRow =
        AnalysisRow { section: SECTION, start: || Box::<DriverCalls>::default() };

    #[derive(Debug, Default)]
    struct DriverCalls {
        by_device: BTreeMap<u8, u64>,
    }

    /// The row of one trace.
    #[derive(Debug, Serialize)]
    pub(super) struct DriverCallCounts {
        pub(super) trace: usize,
        pub(super) by_device: BTreeMap<u8, u64>,
    }

    impl EventAnalysis for DriverCalls {
        fn takes(&self, kind: EventKind) -> bool {
            kind.is_driver_call()
        }

        fn on_event(&mut self, event: &Event, _: &EventContext<'_>) {
            *self.by_device.entry(event.device).or_default() += 1;
        }

        fn section(&self, trace: usize, _: u64) -> Option<Arc<dyn SectionData>> {
            Some(Arc::new(DriverCallCounts { trace, by_device: self.by_device.clone() }))
        }
    }

    /// The text: a row of the table of sections.
    pub(super) const TEXT: SectionRow = SectionRow {
        section: SECTION,
        flag: "driver-calls",
        help: "Driver calls of each GPU",
        render: render_driver_calls,
    };

    fn render_driver_calls(out: &mut String, report: &Report, trace: usize, _: Style, _: &mut SiteFormatter) {
        for row in report.extra.get("driver_calls").into_iter().flatten() {
            let row: &dyn Any = &**row;
            let Some(counts) = row.downcast_ref::<DriverCallCounts>() else { continue };
            for (device, calls) in counts.by_device.iter().filter(|_| counts.trace == trace) {
                put_line(out, format_args!("GPU {device}: {calls} driver calls"));
            }
        }
    }
}

/// The output: one file, with a row in the table of formats.
struct CsvRenderer;

impl OutputFormat for CsvRenderer {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn help(&self) -> &'static str {
        "Peaks as CSV"
    }
}

impl Renderer<PresentedReport> for CsvRenderer {
    fn render(
        &self,
        report: &PresentedReport,
        _: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        for device in &report.devices {
            writeln!(out, "{},{}", device.device, device.peak.live_bytes.unwrap_or(0))?;
        }
        Ok(())
    }
}

impl ReportRenderer for CsvRenderer {
    fn report_needs<'a>(&self, _: &RenderContext<'a>) -> ReportNeeds<'a> {
        ReportNeeds { only_asked_sections: true, names: NameScope::ALL, truncated_lists: true }
    }
}

static MORE_ANALYSES: &[AnalysisRow] = &[driver_calls::ROW];
static MORE_SECTIONS: &[SectionRow] = &[driver_calls::TEXT];
/// The table of outputs with one more row.
struct MoreOutputs;

impl OutputTable for MoreOutputs {
    type Renderer = dyn ReportRenderer;

    fn rows() -> &'static [&'static Self::Renderer] {
        &[&TextRenderer, &JsonRenderer, &CsvRenderer]
    }
}

fn analyse_two_calls() -> Analysis {
    let mut run = Synthetic::new();
    let line = run.frame(NodeId::NONE, "/work/train.py", "main", 3);
    let block = run.alloc(line, 4096);
    run.release(block, line);
    for addr in [0x10_0000, 0x20_0000] {
        run.event(EventKind::DEVICE_ALLOC, addr, 512, [0; 2], line);
    }
    let options = AnalysisOptions { more_analyses: MORE_ANALYSES, ..AnalysisOptions::default() };
    gpumemtrace_synthetic::analyse_part(&run.file(100), options)
}

fn present(analyses: &[Analysis], sections: &[Section]) -> PresentedReport {
    PresentedReport::new(report(analyses, sections), analyses, NameScope::ALL, &mut Resolver::for_user())
}

fn render(renderer: &dyn ReportRenderer, report: &PresentedReport, context: &RenderContext<'_>) -> String {
    let mut out = Vec::new();
    renderer.render(report, context, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn added_analysis_is_in_json_and_text() {
    let analysis = analyse_two_calls();
    let expected = analysis.counts.iter().filter(|(kind, _)| kind.is_driver_call());
    let expected: u64 = expected.map(|(_, count)| count).sum();
    assert!(expected >= 2, "{:?}", analysis.counts);
    let analyses = [analysis];
    let all = serde_json::to_value(report(&analyses, &[])).unwrap();
    assert_eq!(all["driver_calls"][0]["by_device"]["0"], expected);
    assert!(all.get("leaks").is_some());
    let only = present(&analyses, &[driver_calls::SECTION]);
    let context = RenderContext {
        sections: &[driver_calls::SECTION],
        section_rows: MORE_SECTIONS,
        ..RenderContext::new(Style::for_stdout(ColorChoice::Never))
    };
    let json: serde_json::Value = serde_json::from_str(&render(&JsonRenderer, &only, &context)).unwrap();
    assert_eq!(json["driver_calls"], all["driver_calls"]);
    assert!(json.get("leaks").is_none(), "only the selected section");
    let text = render(&TextRenderer, &only, &context);
    assert!(text.contains(&format!("GPU 0: {expected} driver calls\n")), "{text}");
}

#[test]
fn added_output_is_selected_by_its_flag() {
    let parser = OutputChoice::<MoreOutputs>::augment_args(clap::Command::new("replay"));
    let matches = parser.clone().try_get_matches_from(["replay", "--csv"]).unwrap();
    let selected = OutputChoice::<MoreOutputs>::from_arg_matches(&matches).unwrap().renderer;
    let report = present(&[analyse_two_calls()], &[]);
    let context = RenderContext::new(Style::for_stdout(ColorChoice::Never));
    assert_eq!(render(selected, &report, &context), "0,4096\n");
    for wrong in [&["replay", "--tsv"][..], &["replay", "--csv", "--json"]] {
        assert!(parser.clone().try_get_matches_from(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn every_section_of_the_report_has_a_flag_and_a_text() {
    let analyses = [analyse_two_calls()];
    let built_in = [Section::Leaks, Section::Timeline, Section::Fragmentation, Section::Peak, Section::Oom];
    for section in built_in {
        // A new variant must be added to the list above.
        match section {
            Section::Leaks
            | Section::Timeline
            | Section::Fragmentation
            | Section::Peak
            | Section::Oom
            | Section::Extra(_) => {}
        }
    }
    let report = report(&analyses, &[]);
    let extra = report.extra.keys().map(|key| Section::Extra(key));
    let rows: Vec<Section> = SECTIONS.iter().chain(MORE_SECTIONS).map(|row| row.section).collect();
    for section in built_in.into_iter().chain(extra) {
        assert_eq!(rows.iter().filter(|row| **row == section).count(), 1, "{section:?}");
    }
    assert_eq!(rows.len(), built_in.len() + report.extra.len(), "a text without a section");
}
