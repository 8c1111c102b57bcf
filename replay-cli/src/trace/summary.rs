//! The summary of one trace, from its analysis.

use std::cell::RefCell;

use gpumemtrace_multirun::{CallSite, TraceSummary};
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::report::Site;
use gpumemtrace_replay::{Analysis, Report, report};

use crate::render::PresentedReport;
use crate::render::text::sources_of_report;
use crate::render::wording::sites::format_site;
use crate::source::SourceArgs;
use crate::symbolize::Resolver;

/// Looks at the report of one trace, with all sections and without names of native functions.
pub(crate) type ReportInspector<'a> = dyn Fn(&Report, &[Analysis]) + Sync + 'a;

/// Summarizes an analysis of a whole trace.
pub(crate) fn summarize_analysis(
    analysis: &Analysis,
    resolver: &mut Resolver,
    inspect: &ReportInspector<'_>,
) -> TraceSummary {
    let analyses = std::slice::from_ref(analysis);
    let report = report(analyses, &[]);
    inspect(&report, analyses);
    let scope = NameScope { stacks: false, ..NameScope::ALL };
    let report = PresentedReport::new(report, analyses, scope, resolver);
    let sources = RefCell::new(sources_of_report(&report.traces, &SourceArgs::default()));
    let call_site = |site: &Site| CallSite {
        id: site.id.clone(),
        text: format_site(site),
        source_id: sources.borrow_mut().line_id(site),
    };
    TraceSummary::of_report(&report, &call_site).expect("a report of one analysis has one trace")
}
