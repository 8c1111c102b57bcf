//! A run to export: its analysis, its history, and its events.

use std::ops::ControlFlow;
use std::path::Path;

use crate::symbolize::Resolver;
use gpumemtrace_multirun::TraceSummary;
use gpumemtrace_replay::callsite::{NameScope, UserCodePaths};
use gpumemtrace_replay::ingest::TraceHead;
use gpumemtrace_replay::report::{Site, WalkEnd, WalkedEvent};
use gpumemtrace_replay::{
    Analysis, AnalysisOptions, RunHistory, TimeSpec, analyse_with_head, symbolize_sites,
};

use super::ExportWindow;
use crate::exit::UnreadableInput;
use crate::trace::open::TraceSource;
use crate::trace::summary::summarize_analysis;

/// An analysed run that can be walked again.
pub struct ExportRun {
    file: TraceSource,
    head: TraceHead,
    /// The analysis of the whole run. Its history is in `history`.
    pub analysis: Analysis,
    /// The whole run over time; its stacks have no names of native functions.
    pub history: RunHistory,
    /// The part to export.
    pub window: ExportWindow,
}

impl ExportRun {
    /// Joins the parts of a run. The analysis must have been made with [`read_for_export`].
    pub(crate) fn new(
        (file, head): (TraceSource, TraceHead),
        (analysis, history): (Analysis, RunHistory),
        window: ExportWindow,
    ) -> Self {
        Self { file, head, analysis, history, window }
    }

    /// Passes the events to `visit`, in order, up to the end of the window. Those before it are
    /// passed too.
    pub fn walk(
        &mut self,
        visit: &mut dyn FnMut(&WalkedEvent<'_>) -> ControlFlow<()>,
    ) -> anyhow::Result<WalkEnd> {
        let Self { file, head, analysis, window, .. } = self;
        let bounds = (window.since.as_ref(), window.until.as_ref());
        let walked = analysis.walk(&|| file.open(), head, bounds, visit);
        Ok(walked.map_err(|error| UnreadableInput(format!("{} {error}", file.name)))?)
    }

    /// Ends the window at the end of the program, unless the user chose another end. Interpreter
    /// teardown frees all blocks.
    pub(crate) fn end_before_teardown(&mut self) {
        self.window.until.get_or_insert(TimeSpec::End);
    }

    /// What a folder of many runs keeps of this one, whatever the window is.
    pub fn summary(&self, resolver: &mut Resolver) -> TraceSummary {
        summarize_analysis(&self.analysis, resolver, &|_, _| ())
    }

    /// The call sites of stacks, with all frames and names, in the same order.
    pub fn sites_of_stacks(&self, stacks: &[u32], resolver: &mut Resolver) -> Vec<Site> {
        let mut sites = self.analysis.sites_of_stacks(stacks);
        symbolize_sites(sites.iter_mut(), &self.analysis, NameScope::ALL, resolver);
        sites
    }
}

/// Analyses a trace so that it can be walked again.
pub(crate) fn read_for_export(
    path: &Path,
    user_code: UserCodePaths,
    shows_progress: bool,
) -> Result<(Analysis, (TraceSource, TraceHead)), UnreadableInput> {
    let (file, ring) = TraceSource::find(path)?;
    let progress = shows_progress.then(|| file.progress());
    let options = AnalysisOptions { user_code, keeps_history: true, ..Default::default() };
    let (analysis, head) = file.with_input(ring, |input| analyse_with_head(input, options))?;
    drop(progress);
    Ok((analysis, (file, head)))
}
