//! The offline HTML page of one or several traces.
//!
//! The page has a fixed size budget, not one per event. If it is larger, the history is made
//! coarser until it fits, and the page says what was merged.

mod call_tree;
mod columns;
mod data;
mod document;
mod groups;
mod labels;
mod source;
mod trace_data;

use gpumemtrace_replay::{Analysis, KeyframeReason, Report, RunHistory};

use columns::Columns;
use data::{ComparedTraces, PageData};
use document::Document;
use source::SourceLines;

/// What a page is made from.
pub(crate) struct PageSource<'a> {
    /// The traces, and the report of all that are not compared with.
    pub(crate) analyses: &'a [Analysis],
    /// One history for each trace.
    pub(crate) histories: Vec<RunHistory>,
    /// The report that the page embeds.
    pub(crate) report: &'a Report,
    /// Its JSON, byte for byte as `replay --json` prints it.
    pub(crate) json: &'a [u8],
    /// Its summary as text.
    pub(crate) summary: &'a str,
    /// The last trace is the one to compare with, and has a report of its own.
    pub(crate) before: Option<&'a Report>,
}

/// What the user chose for a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageOptions {
    /// Limit of the page in bytes.
    pub(crate) max_bytes: usize,
    /// Embed the source lines of call sites.
    pub(crate) has_source: bool,
}

/// Makes the page. It may exceed the limit if even the coarsest history is too large.
pub(crate) fn make_page(mut source: PageSource<'_>, options: PageOptions) -> String {
    let mut sources = SourceLines::new(options.has_source);
    let mut reductions = Reductions::default();
    loop {
        let page = build(&source, &reductions, options.has_source, &mut sources);
        if page.len() <= options.max_bytes || !reductions.shrink(&mut source.histories) {
            return page;
        }
    }
}

fn build(
    source: &PageSource<'_>,
    reductions: &Reductions,
    has_source: bool,
    sources: &mut SourceLines,
) -> String {
    let mut columns = Columns::default();
    let last = source.analyses.len().saturating_sub(1);
    let traces =
        source.analyses.iter().zip(&source.histories).enumerate().map(|(index, (analysis, history))| {
            let (trace, report) = match source.before {
                Some(before) if index == last => (0, before),
                _ => (index, source.report),
            };
            trace_data::trace_data((trace, analysis, report), history, &mut columns, sources)
        });
    let data = PageData {
        version: 1,
        generator: format!("gpumemtrace {}", env!("CARGO_PKG_VERSION")),
        reductions: reductions.sentences(&source.histories),
        has_source,
        traces: traces.collect(),
        compare: source.before.map(|_| ComparedTraces { before: last, after: 0 }),
    };
    let data = serde_json::to_vec(&data).unwrap_or_default();
    let title = source.report.traces.first().map_or("", |trace| trace.path.rsplit('/').next().unwrap_or(""));
    let (summary, report, columns) = (source.summary, source.json, columns.bytes());
    Document { title, summary, report, columns, data: &data }.to_html()
}

/// What was merged or left out to make the page smaller.
#[derive(Debug, Default)]
struct Reductions {
    dropped_states: usize,
}

impl Reductions {
    /// Makes the histories smaller. False if that is not possible any more.
    fn shrink(&mut self, histories: &mut [RunHistory]) -> bool {
        let devices = || histories.iter().flat_map(|history| &history.devices);
        let rows: usize = devices().map(|device| device.blocks.rows.len()).sum();
        let placed: usize = devices().flat_map(|device| &device.states).map(|state| state.blocks.len()).sum();
        let can_merge = devices().any(|device| device.blocks.bins > 16);
        let is_interval = |why: KeyframeReason| why == KeyframeReason::Interval;
        let can_drop = devices().flat_map(|device| &device.states).any(|state| is_interval(state.why));
        if can_drop && (placed >= rows || !can_merge) {
            for device in histories.iter_mut().flat_map(|history| &mut history.devices) {
                let mut index = 0;
                let before = device.states.len();
                device.states.retain(|state| {
                    index += usize::from(is_interval(state.why));
                    !is_interval(state.why) || index % 2 == 0
                });
                self.dropped_states += before - device.states.len();
            }
            return true;
        }
        if can_merge {
            let all = histories.iter_mut().flat_map(|history| &mut history.devices);
            all.for_each(|device| device.blocks.merge_bins());
        }
        can_merge
    }

    fn sentences(&self, histories: &[RunHistory]) -> Vec<String> {
        let mut sentences = Vec::new();
        let devices = histories.iter().flat_map(|history| &history.devices);
        let widths = devices.map(|device| device.blocks.width_ns / device.bins_width_ns.max(1));
        if let Some(times) = widths.max().filter(|times| *times > 1) {
            sentences.push(format!(
                "Moments of the flame graph are up to {times} times farther apart than those of the timeline."
            ));
        }
        if self.dropped_states > 0 {
            sentences.push(format!(
                "{} states of the segment map are left out, to keep the page small.",
                self.dropped_states
            ));
        }
        for history in histories {
            if history.step_distance > 1 {
                sentences.push("The run has many steps: the page shows times instead of steps.".to_owned());
            }
            if history.omitted_phase_turns > 0 {
                sentences
                    .push(format!("{} later turns of phases are left out.", history.omitted_phase_turns));
            }
        }
        sentences
    }
}
