//! `gpumemtrace info`: what a trace is, without analysing it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;

use gpumemtrace_format::index::Totals;
use gpumemtrace_format::{Counter, EventKind, Value};
use gpumemtrace_replay::RingFile;
use gpumemtrace_replay::input::{Body, Head, incompleteness, missing, read_events};
use gpumemtrace_replay::stream::OrderSummary;

use crate::exit::{CliExit, UnreadableInput};
use crate::terminal::marks::sanitize;
use crate::terminal::stdout::print_text;
use crate::trace::open::TraceSource;
use crate::trace::quick_info::IndexSummary;

/// What `info` takes.
#[derive(clap::Args)]
pub(crate) struct InfoArgs {
    /// A trace file, such as run.trace
    trace: PathBuf,
    /// Read it all, and check every block, also where the sums at its end would do
    #[arg(long)]
    verify: bool,
}

/// What is in the file.
struct TraceContents {
    head: Head,
    /// Code objects, Python frames, native frames, modules.
    definitions: [u64; 4],
    names: usize,
    counts: BTreeMap<u8, u64>,
    threads: u64,
    reasons: Vec<String>,
    /// By the sums alone.
    is_summed: bool,
    may_have_more_threads: bool,
}

impl TraceContents {
    /// By the sums at its end. `None` where it has to be read.
    fn from_index(file: &TraceSource, ring: &RingFile) -> Option<Self> {
        let image = match ring {
            RingFile::Loaded(image) => Some(&**image),
            _ => None,
        };
        let sums = IndexSummary::read(&file.parts, image)?;
        let may_have_more_threads = sums.may_have_more_threads;
        let Totals { placed, seqs, threads, definitions: [codes, python, native], modules, kinds, .. } =
            sums.totals;
        let mut head = Head::summed(sums.meta, sums.end, file.parts.absent.clone());
        (head.is_locked, head.cut) = (file.is_locked(), sums.cut);
        head.own_bytes = file.parts.files.last().map_or(0, |piece| piece.len_bytes);
        head.join(match ring {
            RingFile::Absent => RingFile::Absent,
            RingFile::Unusable(why) => RingFile::Unusable(why.clone()),
            RingFile::Loaded(image) => RingFile::Loaded(image.clone()),
        });
        let order = OrderSummary {
            next_seq: seqs.end,
            missing: seqs.end.saturating_sub(placed),
            ..OrderSummary::default()
        };
        let unknown = kinds.iter().filter(|(kind, _)| EventKind(*kind).name().is_none());
        let unknown_events = unknown.map(|(_, count)| count).sum();
        let body = Body { order, unknown_events, ..Body::default() };
        Some(Self {
            reasons: incomplete_reasons(&head, &body, threads),
            head,
            definitions: [codes, python, native, modules],
            names: 0,
            counts: kinds.into_iter().collect(),
            threads,
            is_summed: true,
            may_have_more_threads,
        })
    }

    fn from_events(file: &TraceSource, ring: RingFile) -> Result<Self, UnreadableInput> {
        let head = file.with_input(ring, Head::read)?;
        let mut counts = [0u64; 256];
        let mut threads = BTreeSet::new();
        let body = read_events(&|| file.open(), &head, &mut |event| {
            counts[event.kind.0 as usize] += 1;
            threads.insert(event.thread);
            ControlFlow::Continue(())
        })
        .map_err(|error| UnreadableInput(format!("{} {error}", file.name)))?;
        let threads = threads.len() as u64;
        let definitions = &head.definitions;
        let numbers = [
            definitions.codes.len(),
            definitions.python.len(),
            definitions.native.len(),
            definitions.modules.len(),
        ];
        Ok(Self {
            reasons: incomplete_reasons(&head, &body, threads),
            definitions: numbers.map(|number| number as u64),
            names: definitions.names.values().map(HashMap::len).sum(),
            counts: (0..=u8::MAX).zip(counts).filter(|(_, count)| *count > 0).collect(),
            threads,
            head,
            is_summed: false,
            may_have_more_threads: false,
        })
    }
}

fn incomplete_reasons(head: &Head, body: &Body, threads: u64) -> Vec<String> {
    let dropped = head.counters().map_or(0, |counters| counters.get(Counter::DroppedEvents));
    incompleteness(head, body, missing(head, body, threads), dropped)
}

/// Does it.
pub(crate) fn run(args: &InfoArgs) -> anyhow::Result<CliExit> {
    let (file, ring) = TraceSource::find(&args.trace)?;
    let has_ring = matches!(ring, RingFile::Loaded(_));
    let summed = if args.verify { None } else { TraceContents::from_index(&file, &ring) };
    let contents = match summed {
        Some(contents) => contents,
        None => TraceContents::from_events(&file, ring)?,
    };
    let TraceContents { head, reasons, .. } = &contents;

    let mut out = String::new();
    writeln!(out, "{}", file.name)?;
    let (ending, detail) = head.ending();
    let detail = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
    writeln!(out, "  ended: {}{}", format!("{ending:?}").to_lowercase(), sanitize(&detail))?;
    writeln!(out, "  held by its recorder: {}", if file.is_locked() { "yes" } else { "no" })?;
    let ring = match (&head.ring_problem, head.ring.is_some()) {
        (Some(why), _) => why.clone(),
        (None, true) => "used".to_owned(),
        (None, false) if has_ring => "not used".to_owned(),
        (None, false) => "none".to_owned(),
    };
    writeln!(out, "  ring file: {ring}")?;
    for (name, value) in head.meta.entries() {
        let value = match value {
            Value::Number(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            // The names that events count through: each line of `dump` has its own.
            Value::List(list) if name == "apis" => {
                format!("{} names", list.iter().filter(|name| *name != "-").count())
            }
            Value::List(list) => list.join(" "),
        };
        writeln!(out, "  {}: {}", sanitize(name), sanitize(&value))?;
    }
    let [codes, python, native, modules] = contents.definitions;
    writeln!(
        out,
        "  definitions: {codes} code objects, {python} Python frames, {native} native frames, {modules} modules"
    )?;
    if contents.names > 0 {
        writeln!(out, "  symbolized: {} native addresses have names in the file", contents.names)?;
    }
    let at_least = if contents.may_have_more_threads { "at least " } else { "" };
    writeln!(out, "  threads: {at_least}{}", contents.threads)?;
    writeln!(out, "  events: {}", contents.counts.values().sum::<u64>())?;
    for (kind, count) in &contents.counts {
        let name = EventKind(*kind).name().map_or_else(|| format!("kind_{kind}"), str::to_owned);
        writeln!(out, "    {name}: {count}")?;
    }
    if let Some(counters) = head.counters() {
        for (name, value) in counters.iter().filter(|(_, value)| *value > 0) {
            writeln!(out, "  recorder counted {name}: {value}")?;
        }
    }
    writeln!(out, "  complete: {}", if reasons.is_empty() { "yes" } else { "no" })?;
    for reason in reasons {
        writeln!(out, "    {}", sanitize(reason))?;
    }
    if contents.is_summed {
        writeln!(out, "  by the sums in the file; --verify reads it all")?;
    }
    print_text(&out)?;
    Ok(if reasons.is_empty() { CliExit::Done } else { CliExit::Incomplete })
}
