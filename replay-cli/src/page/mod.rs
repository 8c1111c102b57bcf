//! The offline HTML page of one or several traces.
//!
//! The page has a fixed size budget, not one per event. If it is larger, the history is made
//! coarser until it fits, and the page says what was merged.
//!
//! A page is made after the analyses are dropped, so it needs no more memory than they did.

mod call_tree;
mod cards;
mod columns;
mod data;
mod document;
mod groups;
mod labels;
mod redaction;
mod reductions;
mod runs;
mod trace_data;

use gpumemtrace_replay::RunHistory;
use gpumemtrace_replay::compare::Comparison;

use crate::render::PresentedReport;
use crate::render::text::sources_of_report;
use crate::source::{SourceArgs, SourceReader};
use crate::terminal::escape::{escape_text, needs_escape};

use cards::{
    CardDevice, CardSite, CardTrace, ComparedWith, Node, TraceCards, page_card, shorten_comparison,
    shorten_files, worst_trace,
};
use columns::Columns;
use data::{ComparedTraces, PageData};
use document::{Bundle, Document, RawBlobs};
use labels::Labels;
use redaction::Redaction;
pub(crate) use redaction::redact_processes;
use reductions::Reductions;
pub(crate) use runs::make_runs_page;

/// A try is not compressed if this part of its expected size is too large.
const SURE_PART: f64 = 0.9;

/// What a page is made from.
pub(crate) struct PageSource<'a> {
    /// One history for each trace.
    pub(crate) histories: Vec<RunHistory>,
    /// The report that the page embeds, on all traces that are not compared with.
    pub(crate) report: &'a PresentedReport,
    /// Its JSON, byte for byte as `replay --json` prints it.
    pub(crate) json: Vec<u8>,
    /// Its summary as text.
    pub(crate) summary: &'a str,
    /// The last trace is the one to compare with.
    pub(crate) before: Option<RunBefore<'a>>,
}

/// The trace to compare with: its own report, and how the first trace differs from it.
#[derive(Clone, Copy)]
pub(crate) struct RunBefore<'a> {
    pub(crate) report: &'a PresentedReport,
    pub(crate) comparison: &'a Comparison,
}

impl PageSource<'_> {
    /// The index of a trace in its report, and the report.
    fn report_of(&self, trace: usize) -> (usize, &PresentedReport) {
        match self.before {
            Some(before) if trace + 1 == self.histories.len() => (0, before.report),
            _ => (trace, self.report),
        }
    }
}

/// What the user chose for a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageOptions<'a> {
    /// Limit of the page in bytes.
    pub(crate) max_bytes: usize,
    /// Which source lines of call sites are embedded.
    pub(crate) source: &'a SourceArgs,
    /// Cut the directories of all paths.
    pub(crate) is_redacted: bool,
}

/// Makes the page. It may exceed the limit if even the coarsest history is too large.
pub(crate) fn make_page(mut source: PageSource<'_>, options: PageOptions<'_>) -> String {
    let mut sources = sources_of_report(&source.report.traces, options.source);
    let mut reductions = Reductions::default();
    let title = source.report.traces.first().map_or("", |trace| trace.path.rsplit('/').next().unwrap_or(""));
    let (mut summary, mut json) = (source.summary.to_owned(), std::mem::take(&mut source.json));
    let redaction = options.is_redacted.then(|| Redaction::of_report(&json));
    if let Some(redaction) = &redaction {
        (summary, json) = (redaction.text(&summary), redaction.json(&json));
    }
    let document = Document::new(Bundle::REPORT, &escape_text(title), &summary, &json);
    let cards = PageCards::new(&source, &mut sources);
    // Encoded bytes per raw byte of the last try.
    let mut rate = 0.0;
    loop {
        let mut raw = raw_histories(&source, &cards, &reductions, &mut sources);
        if let Some(redaction) = &redaction {
            raw.data = redaction.json(&raw.data);
        }
        let is_hopeless = raw.len() as f64 * rate * SURE_PART > options.max_bytes as f64;
        if is_hopeless && reductions.shrink(&mut source.histories) {
            continue;
        }
        let blobs = raw.encode();
        rate = blobs.len() as f64 / raw.len().max(1) as f64;
        let fits = document.len_with(&blobs) <= options.max_bytes;
        if fits || !reductions.shrink(&mut source.histories) {
            return document.to_html(&blobs);
        }
    }
}

/// The text of the page. It is the same however coarse the histories are.
struct PageCards {
    traces: Vec<TraceCards>,
    ranks: Vec<Node>,
}

impl PageCards {
    fn new(source: &PageSource<'_>, sources: &mut SourceReader) -> Self {
        let sites: Vec<_> = source.histories.iter().map(trace_data::named_sites).collect();
        let labels: Vec<Labels> = sites.iter().map(|sites| Labels::new(sites)).collect();
        let report = shorten_files(source.report, &labels);
        let last = labels.len().saturating_sub(1);
        let before = source.before.map(|before| shorten_files(before.report, &labels[last..]));
        let comparison =
            source.before.map(|before| shorten_comparison(before.comparison, [&labels[last], &labels[0]]));
        let traces = sites.iter().zip(&source.histories).enumerate().map(|(index, (sites, history))| {
            let (trace, _) = source.report_of(index);
            let before = before.as_ref().filter(|_| index + 1 == source.histories.len());
            let sites = sites.iter().enumerate();
            let sites = sites
                .map(|(index, site)| (site.id.as_str(), CardSite { index, source: sources.line_of(site) }));
            let devices = history.devices.iter();
            let devices = devices
                .map(|device| CardDevice { ordinal: u32::from(device.ordinal), has_torch: device.has_torch });
            CardTrace {
                report: before.unwrap_or(&report),
                trace,
                page_trace: index,
                sites: sites.collect(),
                devices: devices.collect(),
            }
        });
        let traces: Vec<CardTrace<'_>> = traces.collect();
        let compared = traces.last().zip(comparison.as_ref());
        let compared = compared.map(|(trace, comparison)| ComparedWith { trace, comparison });
        let cards = |(index, trace)| cards::trace_cards(trace, compared.as_ref().filter(|_| index == 0));
        Self { traces: traces.iter().enumerate().map(cards).collect(), ranks: cards::rank_cards(&traces) }
    }
}

/// JSON in which texts show what [`needs_escape`] names, as the cards do. serde_json has escaped
/// everything of ASCII.
fn escape_names(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if needs_escape(c) {
            // The backslash of the text is escaped in JSON.
            escaped.push('\\');
            escaped.push_str(&escape_text(c.encode_utf8(&mut [0; 4])));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

fn raw_histories(
    source: &PageSource<'_>,
    cards: &PageCards,
    reductions: &Reductions,
    sources: &mut SourceReader,
) -> RawBlobs {
    let mut columns = Columns::default();
    let last = source.histories.len().saturating_sub(1);
    let traces = source.histories.iter().enumerate().map(|(index, history)| {
        let (trace, report) = source.report_of(index);
        trace_data::trace_data((trace, report), history, &mut columns, sources)
    });
    let traces = traces.collect();
    let data = PageData {
        version: 1,
        traces,
        cards: &cards.traces,
        rank_cards: &cards.ranks,
        page_card: page_card(&reductions.sentences(&source.histories), sources.withheld()),
        compare: source.before.map(|_| ComparedTraces { before: last, after: 0 }),
        first_trace: worst_trace(source.report),
    };
    let data = escape_names(&serde_json::to_string(&data).unwrap_or_default());
    RawBlobs { columns: columns.into_bytes(), data: data.into_bytes() }
}
