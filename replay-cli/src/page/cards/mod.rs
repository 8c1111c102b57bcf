//! The text of the page: findings, leaks, errors, ranks and the recording, as trees of elements.
//!
//! The command words them, because the sentences of `replay` are here and not in the script. Each
//! file makes the cards of one view.

mod comparison;
mod device_memory;
mod element;
mod figures;
mod findings;
mod fragmentation;
mod growth;
mod headline;
mod leaks;
mod markdown;
mod oom;
mod oom_memory;
mod ranks;
mod run;
mod setting_effects;
mod short_files;
mod stack;

use std::collections::{BTreeMap, HashMap};

use gpumemtrace_format::source_path::file_name;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::compare::Comparison;
use gpumemtrace_replay::report::{CauseKind, Severity, Site, TraceInfo};
use serde::Serialize;
use serde_json::{Value, json};

pub(super) use element::Node;
use element::{Color, Content, Element, element};
use figures::DeviceCards;
use fragmentation::GapCard;
use headline::Headline;
pub(super) use run::page_card;
pub(super) use short_files::{shorten_comparison, shorten_files};

use crate::render::wording::sites::short_site;
use crate::terminal::format::format_number;
use crate::terminal::units::format_bytes;

/// A trace of the page and the report about it.
pub(super) struct CardTrace<'a> {
    /// A copy with short files, from [`shorten_files`].
    pub(super) report: &'a Report,
    /// Index of the trace in the report.
    pub(super) trace: usize,
    /// Index of the trace in the page. It differs for the trace that the page compares with.
    pub(super) page_trace: usize,
    /// The sites that the page has, by [`Site::id`].
    pub(super) sites: HashMap<&'a str, CardSite>,
    pub(super) devices: Vec<CardDevice>,
}

/// The trace that the page compares with, and how the first trace differs from it.
pub(super) struct ComparedWith<'a> {
    pub(super) trace: &'a CardTrace<'a>,
    /// A copy with short files, from [`shorten_comparison`].
    pub(super) comparison: &'a Comparison,
}

/// The blocks that the flame graph shows after a click on a call site.
#[derive(Clone, Copy, Debug)]
enum SiteBlocks {
    AtPeak,
    /// Live at this time in nanoseconds.
    At(u64),
    /// Allocated in the run and still live at its end.
    Kept,
}

/// What the page has of a call site.
pub(super) struct CardSite {
    pub(super) index: usize,
    pub(super) source: Option<String>,
}

/// A device of a trace, in the order of the page.
pub(super) struct CardDevice {
    pub(super) ordinal: u32,
    pub(super) has_torch: bool,
}

/// The cards of one trace by view.
#[derive(Debug, Serialize)]
pub(super) struct TraceCards {
    headline: Headline,
    /// The overview as Markdown.
    markdown: String,
    /// Empty for a complete trace.
    losses: Vec<Node>,
    findings: Vec<Node>,
    /// By index of the device.
    devices: Vec<DeviceCards>,
    leaks: Vec<Node>,
    oom: Vec<Node>,
    gaps: Vec<GapCard>,
    causes: BTreeMap<CauseKind, String>,
    run: Vec<Node>,
}

/// Writes the cards of one trace.
pub(super) fn trace_cards(trace: &CardTrace<'_>, before: Option<&ComparedWith<'_>>) -> TraceCards {
    TraceCards {
        headline: headline::headline(trace),
        markdown: markdown::overview(trace),
        losses: headline::losses(trace),
        findings: findings::cards(trace),
        devices: figures::cards(trace, before),
        leaks: leaks::cards(trace),
        oom: oom::cards(trace),
        gaps: fragmentation::cards(trace),
        causes: fragmentation::cause_names(trace),
        run: run::cards(trace),
    }
}

/// The trace with the most severe finding, the first of several; the first trace without findings.
pub(super) fn worst_trace(report: &Report) -> usize {
    let verdicts = report.verdicts.iter().flatten();
    let worst = verdicts.min_by_key(|verdict| (std::cmp::Reverse(verdict.severity), verdict.trace));
    worst.filter(|verdict| verdict.severity != Severity::Info).map_or(0, |verdict| verdict.trace)
}

/// Writes the cards of the view of ranks. Empty for a single rank.
pub(super) fn rank_cards(traces: &[CardTrace<'_>]) -> Vec<Node> {
    traces.first().map(|first| ranks::cards(first.report, traces)).unwrap_or_default()
}

impl CardTrace<'_> {
    fn site(&self, site: &Site) -> Option<&CardSite> {
        self.sites.get(site.id.as_str())
    }

    fn color(&self, site: &Site) -> Color {
        Color::Site(self.site(site).map(|site| site.index))
    }

    /// The source line of a call site, if the page may show it.
    fn source(&self, site: &Site) -> Option<Element> {
        let source = self.site(site)?.source.as_deref()?;
        Some(element("pre").class("source").add(source))
    }

    /// The index of a device in the page; `None` if the page has no history of it.
    fn device_index(&self, ordinal: u32) -> Option<usize> {
        self.devices.iter().position(|device| device.ordinal == ordinal)
    }

    /// The name of a call site. If the page has it, a click opens the flame graph at its stacks.
    fn site_link(&self, site: &Site, device: u32, blocks: SiteBlocks) -> Element {
        let name = short_site(site);
        match self.site(site) {
            None => element("span").class("muted").add(name),
            Some(_) => link_button(&name).opens(Some("flame"), &self.site_change(site, device, blocks)),
        }
    }

    /// The selection that shows the stacks of a call site in the flame graph.
    fn site_change(&self, site: &Site, device: u32, blocks: SiteBlocks) -> Value {
        let mode = match blocks {
            SiteBlocks::AtPeak => "peak",
            SiteBlocks::At(_) => "live",
            SiteBlocks::Kept => "kept",
        };
        let options = json!({ "flame.mode": mode, "flame.zoom": "site" });
        let mut change = json!({ "trace": self.page_trace, "site": site.id, "options": options });
        if let Some(index) = self.device_index(device) {
            change["device"] = index.into();
        }
        let from_ns = match blocks {
            // The peak is no selected moment.
            SiteBlocks::AtPeak => return change,
            SiteBlocks::At(time_ns) => Some(time_ns),
            SiteBlocks::Kept => None,
        };
        change["from_ns"] = from_ns.into();
        change["to_ns"] = Value::Null;
        change
    }

    /// `rank 3`, or the file's name. `None` if the report is about one trace.
    fn name_among_traces(&self) -> Option<String> {
        (self.report.traces.len() > 1).then(|| name_trace(self.report, self.trace))
    }
}

/// `rank 3`, or the file's name. `run.trace (trace 2)` if another trace has this name.
fn name_trace(report: &Report, trace: usize) -> String {
    let name = |info: &TraceInfo| {
        info.rank.map_or_else(|| file_name(&info.path).to_owned(), |rank| format!("rank {rank}"))
    };
    let own = name(&report.traces[trace]);
    let is_unique = report.traces.iter().filter(|other| name(other) == own).count() == 1;
    if is_unique { own } else { format!("{own} (trace {})", trace + 1) }
}

/// The nodes of some content.
fn nodes(content: impl Content) -> Vec<Node> {
    let mut nodes = Vec::new();
    content.add_to(&mut nodes);
    nodes
}

/// A button that looks like a link.
fn link_button(text: &str) -> Element {
    element("button").class("link").add(text)
}

/// A card of a view with a severity.
fn case(tag: &'static str, severity: &str) -> Element {
    element(tag).class("card case").with("data-severity", severity)
}

fn paragraph(content: impl Content) -> Element {
    element("p").add(content)
}

/// A paragraph `Held by train.kept (list, 34 items).`
fn held_by(holder: &str) -> Element {
    paragraph("Held by ").add(element("code").add(holder)).add(".")
}

/// A button that opens another view.
fn view_button(text: &str, view: &str, change: &Value) -> Element {
    element("button").add(text).opens(Some(view), change)
}

/// A link to another view.
fn view_link(text: &str, view: &str, change: &Value) -> Element {
    element("a").class("more-link").add(text).opens(Some(view), change)
}

/// `931.87 MiB (977,137,664 B)`
fn exact_bytes(bytes: u64) -> String {
    format!("{} ({} B)", format_bytes(bytes), format_number(bytes))
}

/// A number of bytes, or that it is unknown.
fn known_bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), format_bytes)
}
