//! `gpumemtrace info`: what a trace is, without analysing it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;

use gpumemtrace_format::Counter;
use gpumemtrace_format::{EventKind, Value};
use gpumemtrace_replay::RingFile;
use gpumemtrace_replay::input::{Head, incompleteness, missing, read_events};

use crate::exit::{Exit, Unreadable};
use crate::open::TraceFile;
use crate::output;

/// What `info` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A trace file, such as run.trace
    trace: PathBuf,
}

/// Does it.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let (file, ring) = TraceFile::find(&args.trace)?;
    let has_ring = matches!(ring, RingFile::Loaded(_));
    let head = file.with_input(ring, Head::read)?;
    let mut counts = [0u64; 256];
    let mut threads = std::collections::BTreeSet::new();
    let body = read_events(&|| file.open(), &head, &mut |event| {
        counts[event.kind.0 as usize] += 1;
        threads.insert(event.thread);
        ControlFlow::Continue(())
    })
    .map_err(|error| Unreadable(format!("{} {error}", file.name)))?;
    let missing = missing(&head, &body, threads.len() as u64);
    let dropped = head.counters().map_or(0, |counters| counters.get(Counter::DroppedEvents));
    let reasons = incompleteness(&head, &body, missing, dropped);

    let mut out = String::new();
    writeln!(out, "{}", file.name)?;
    let (ending, detail) = head.ending();
    let detail = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
    writeln!(out, "  ended: {}{detail}", format!("{ending:?}").to_lowercase())?;
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
            Value::List(list) => list.join(" "),
        };
        writeln!(out, "  {name}: {value}")?;
    }
    let definitions = &head.definitions;
    writeln!(
        out,
        "  definitions: {} code objects, {} Python frames, {} native frames, {} modules",
        definitions.codes.len(),
        definitions.python.len(),
        definitions.native.len(),
        definitions.modules.len()
    )?;
    let names: usize = definitions.names.values().map(HashMap::len).sum();
    if names > 0 {
        writeln!(out, "  symbolized: {names} native addresses have names in the file")?;
    }
    writeln!(out, "  threads: {}", threads.len())?;
    writeln!(out, "  events: {}", counts.iter().sum::<u64>())?;
    for (kind, count) in (0..=u8::MAX).map(EventKind).zip(counts).filter(|(_, count)| *count > 0) {
        let name = kind.name().map_or_else(|| format!("kind_{}", kind.0), str::to_owned);
        writeln!(out, "    {name}: {count}")?;
    }
    if let Some(counters) = head.counters() {
        for (name, value) in counters.iter().filter(|(_, value)| *value > 0) {
            writeln!(out, "  recorder counted {name}: {value}")?;
        }
    }
    writeln!(out, "  complete: {}", if reasons.is_empty() { "yes" } else { "no" })?;
    for reason in &reasons {
        writeln!(out, "    {reason}")?;
    }
    output::print(&out)?;
    Ok(if reasons.is_empty() { Exit::Done } else { Exit::Incomplete })
}
