//! `gpumemtrace info`: shows what a trace contains, without analysing it.
//!
//! The counts come from the index at the end of each file where there is one, because reading a
//! billion events takes half a minute. `--verify` reads all blocks instead.

mod metadata;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::path::PathBuf;

use gpumemtrace_format::EventKind;
use gpumemtrace_format::index::IndexTotals;
use gpumemtrace_replay::RingFile;
use gpumemtrace_replay::ingest::{
    OrderSummary, RingProblem, TraceBody, TraceHead, find_losses, survey_events,
};

use crate::exit::{CliExit, UnreadableInput};
use crate::render::wording::describe_loss;
use crate::terminal::escape::escape_text;
use crate::terminal::stdout::print_text;
use crate::trace::open::TraceSource;
use crate::trace::quick_info::IndexSummary;
use metadata::{describe_ending, describe_entry};

#[derive(clap::Args)]
pub(crate) struct InfoArgs {
    /// Trace file, such as run.trace
    trace: PathBuf,
    /// Read the whole trace and check every block of the file
    #[arg(long)]
    verify: bool,
    /// List the intercepted functions
    #[arg(short, long)]
    verbose: bool,
}

/// The counts of one trace.
struct TraceContents {
    head: TraceHead,
    /// Code objects, Python frames, native frames, modules.
    definitions: [u64; 4],
    /// Native addresses that `symbolize` has named.
    names: usize,
    /// The number of events of each kind.
    counts: BTreeMap<u8, u64>,
    threads: u64,
    /// The losses, a sentence each.
    reasons: Vec<String>,
    /// The counts come from the index.
    is_from_index: bool,
    /// `threads` is a lower bound: the index counts the threads of each part separately.
    may_have_more_threads: bool,
}

impl TraceContents {
    /// Reads only the index at the end of each file. `None` if a file has none.
    fn from_index(file: &TraceSource, ring: &RingFile) -> Option<Self> {
        let image = match ring {
            RingFile::Loaded(image) => Some(&**image),
            _ => None,
        };
        let summary = IndexSummary::read(&file.parts, image)?;
        let may_have_more_threads = summary.may_have_more_threads;
        let IndexTotals {
            placed, seqs, threads, definitions: [codes, python, native], modules, kinds, ..
        } = summary.totals;
        let mut head = TraceHead::without_events(summary.meta, summary.end, file.parts.absent.clone());
        (head.is_locked, head.truncated_end) = (file.is_locked(), summary.cut);
        head.last_file_bytes = file.parts.files.last().map_or(0, |part| part.len_bytes);
        head.attach_ring(match ring {
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
        let body = TraceBody { order, unknown_events, ..TraceBody::default() };
        Some(Self {
            reasons: incomplete_reasons(&head, &body, threads),
            head,
            definitions: [codes, python, native, modules],
            names: 0,
            counts: kinds.into_iter().collect(),
            threads,
            is_from_index: true,
            may_have_more_threads,
        })
    }

    fn from_events(file: &TraceSource, ring: RingFile) -> Result<Self, UnreadableInput> {
        let head = file.with_input(ring, TraceHead::read)?;
        let mut counts = [0u64; 256];
        let (body, threads) =
            survey_events(&|| file.open(), &head, &mut |event| counts[event.kind.0 as usize] += 1)
                .map_err(|error| UnreadableInput(format!("{} {error}", file.name)))?;
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
            is_from_index: false,
            may_have_more_threads: false,
        })
    }
}

fn incomplete_reasons(head: &TraceHead, body: &TraceBody, threads: u64) -> Vec<String> {
    find_losses(head, body, threads).1.iter().map(describe_loss).collect()
}

/// Writes how the recording ended, and what became of its ring file.
fn write_state(out: &mut String, file: &TraceSource, head: &TraceHead, has_ring: bool) -> fmt::Result {
    writeln!(out, "{}", escape_text(&file.name))?;
    if file.is_snapshot() {
        return writeln!(out, "  snapshot of PyTorch, read as a trace");
    }
    let (ending, detail) = head.ending();
    let ending = describe_ending(ending, detail.as_deref());
    writeln!(out, "  recording closed by: {}", escape_text(&ending))?;
    writeln!(out, "  being written: {}", if file.is_locked() { "yes" } else { "no" })?;
    let ring = match (&head.ring_problem, head.ring.is_some()) {
        (Some(RingProblem::Foreign), _) => "belongs to another trace".to_owned(),
        (Some(RingProblem::Unusable(why)), _) => why.clone(),
        (None, true) => "used".to_owned(),
        (None, false) if has_ring => "not used".to_owned(),
        (None, false) => "none".to_owned(),
    };
    writeln!(out, "  ring file: {}", escape_text(&ring))
}

pub(crate) fn run(args: &InfoArgs) -> anyhow::Result<CliExit> {
    let (file, ring) = TraceSource::find(&args.trace)?;
    let has_ring = matches!(ring, RingFile::Loaded(_));
    let from_index =
        if args.verify || file.is_snapshot() { None } else { TraceContents::from_index(&file, &ring) };
    let contents = match from_index {
        Some(contents) => contents,
        None => TraceContents::from_events(&file, ring)?,
    };
    let TraceContents { head, reasons, .. } = &contents;

    let mut out = String::new();
    write_state(&mut out, &file, head, has_ring)?;
    for (name, value) in head.meta.entries() {
        writeln!(out, "  {}", escape_text(&describe_entry(name, value, args.verbose)))?;
    }
    let [codes, python, native, modules] = contents.definitions;
    writeln!(
        out,
        "  definitions: {codes} code objects, {python} Python frames, {native} native frames, {modules} modules"
    )?;
    if contents.names > 0 {
        writeln!(out, "  symbolized: the file names {} native addresses", contents.names)?;
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
            writeln!(out, "  recorder counter {}: {value}", escape_text(name))?;
        }
    }
    writeln!(out, "  complete: {}", if reasons.is_empty() { "yes" } else { "no" })?;
    for reason in reasons {
        writeln!(out, "    {}", escape_text(reason))?;
    }
    if contents.is_from_index {
        writeln!(out, "  counts are from the index of the trace; --verify reads the whole file")?;
    }
    print_text(&out)?;
    Ok(if reasons.is_empty() { CliExit::Done } else { CliExit::Incomplete })
}
