//! A report that is ready for output.
//!
//! The analyses return a [`Report`] of values: addresses instead of names of native functions, and
//! no sentences. [`PresentedReport`] has both, and renderers, pages and exports take nothing else,
//! so an output without names or sentences does not compile.

use std::ops::Deref;

use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::{Analysis, Report, symbolize_report};
use serde::Serialize;

use super::wording::fill_report;
use crate::symbolize::Resolver;

/// A report with the names of native functions and all sentences.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct PresentedReport(Report);

impl Deref for PresentedReport {
    type Target = Report;

    fn deref(&self) -> &Report {
        &self.0
    }
}

impl PresentedReport {
    /// Finds the names in `scope`, then writes the sentences. `analyses` are those that the report
    /// was made from.
    pub(crate) fn new(
        report: Report,
        analyses: &[Analysis],
        scope: NameScope<'_>,
        resolver: &mut Resolver,
    ) -> Self {
        Self::filtered(report, analyses, scope, resolver, |_| ())
    }

    /// Like [`PresentedReport::new`], with a filter between names and sentences: it sees the names,
    /// and the sentences are about what it leaves.
    pub(crate) fn filtered(
        mut report: Report,
        analyses: &[Analysis],
        scope: NameScope<'_>,
        resolver: &mut Resolver,
        filter: impl FnOnce(&mut Report),
    ) -> Self {
        symbolize_report(&mut report, analyses, scope, resolver);
        filter(&mut report);
        fill_report(&mut report);
        Self(report)
    }

    /// Changes values that no sentence depends on.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Report)) {
        change(&mut self.0);
    }

    /// A copy with changed values, and sentences about these.
    pub(crate) fn reworded(&self, change: impl FnOnce(&mut Report)) -> Self {
        let mut report = self.0.clone();
        change(&mut report);
        fill_report(&mut report);
        Self(report)
    }
}
