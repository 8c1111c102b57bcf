//! The summary of one trace, from its analysis.

use gpumemtrace_fleet::TraceSummary;
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::{Analysis, Report, report};

use crate::render::PresentedReport;
use crate::render::wording::sites::format_site;
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
    TraceSummary::of_report(&report, &format_site).expect("a report of one analysis has one trace")
}
