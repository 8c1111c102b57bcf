//! `gpumemtrace dump`: prints every record as text, in order.
//!
//! Tests compare this output with what programs did, so its format is fixed.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use gpumemtrace_format::event::FLAG_FREED_AT_ONCE;
use gpumemtrace_format::{Counter, Event, EventKind, FrameLink, Meta, MetaValue, NO_DEVICE, NO_SEQ};
use gpumemtrace_replay::callsite::line_at;
use gpumemtrace_replay::ingest::{TraceHead, find_losses, read_events, survey_events};
use gpumemtrace_replay::{MemoryByPlace, MemoryPlace};

use crate::exit::{CliExit, UnreadableInput};
use crate::render::wording::describe_loss;
use crate::terminal::escape::{escape_text, needs_escape};
use crate::terminal::stdout::stdout;
use crate::trace::open::TraceSource;

#[derive(clap::Args)]
pub(crate) struct DumpArgs {
    /// Trace file, such as run.trace
    trace: PathBuf,
    /// Also print the frames that stack numbers refer to
    #[arg(long)]
    stacks: bool,
    /// Also print the driver memory after each driver call, as held=PLACE:BYTES,...
    #[arg(long)]
    totals: bool,
}

pub(crate) fn run(args: &DumpArgs) -> anyhow::Result<CliExit> {
    let (file, ring) = TraceSource::find(&args.trace)?;
    let head = file.with_input(ring, TraceHead::read)?;
    let mut events = 0u64;
    let unreadable = |error| UnreadableInput(format!("{} {error}", file.name));
    let (body, threads) = survey_events(&|| file.open(), &head, &mut |_| events += 1).map_err(unreadable)?;
    let (missing, losses) = find_losses(&head, &body, threads);
    let counter = |counter| head.counters().map_or(0, |counters| counters.get(counter));
    let dropped = counter(Counter::DroppedEvents);

    let mut out = stdout();
    for (name, value) in head.meta.entries() {
        writeln!(out, "# meta {}={}", quote_word(name), quote_word(&format_value(value)))?;
    }
    writeln!(
        out,
        "# losses dropped_events={} corrupt_blocks={} truncated_stacks={} in_flight={}",
        dropped + missing.lost,
        head.damage.count + body.damage.count,
        counter(Counter::TruncatedStacks),
        missing.in_flight + body.order.unplaced.len() as u64
    )?;
    for loss in &losses {
        writeln!(out, "# incomplete {}", escape_text(&describe_loss(loss)))?;
    }
    let (ending, detail) = head.ending();
    let detail = detail.map(|detail| format!(" ({})", escape_text(&detail))).unwrap_or_default();
    writeln!(out, "# end {}{detail} events={}", format!("{ending:?}").to_lowercase(), events)?;

    let mut failed = None;
    let mut held = args.totals.then(DriverTotalsTracker::default);
    let body = read_events(&|| file.open(), &head, &mut |event| match write_event(
        &mut out,
        event,
        &head.meta,
        held.as_mut(),
    ) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })
    .map_err(unreadable)?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    for event in &body.order.unplaced {
        write_event(&mut out, event, &head.meta, None)?;
    }
    if args.stacks {
        write_definitions(&mut out, &head)?;
    }
    out.flush()?;
    Ok(if losses.is_empty() { CliExit::Done } else { CliExit::Incomplete })
}

/// Driver memory per place, updated event by event.
#[derive(Default)]
struct DriverTotalsTracker {
    memory: MemoryByPlace,
}

impl DriverTotalsTracker {
    fn record(&mut self, event: &Event) -> String {
        self.memory.on_event(event);
        let places = self.memory.iter().map(|(place, bytes)| match place {
            MemoryPlace::Device(ordinal) => format!("{ordinal}:{bytes}"),
            MemoryPlace::UnknownDevice => format!("?:{bytes}"),
            MemoryPlace::Host => format!("host:{bytes}"),
            MemoryPlace::Managed => format!("managed:{bytes}"),
            MemoryPlace::Foreign => format!("foreign:{bytes}"),
        });
        places.collect::<Vec<_>>().join(",")
    }
}

fn write_event(
    out: &mut impl Write,
    event: &Event,
    meta: &Meta,
    held: Option<&mut DriverTotalsTracker>,
) -> std::io::Result<()> {
    match event.seq {
        NO_SEQ => write!(out, "seq=?")?,
        seq => write!(out, "seq={seq}")?,
    }
    write!(out, " time_ns={} tid={} kind=", event.time_ns, event.thread.0)?;
    match event.kind.name() {
        Some(name) => out.write_all(name.as_bytes())?,
        None => write!(out, "kind_{}", event.kind.0)?,
    }
    match (event.api.0, meta.list("apis").get(usize::from(event.api.0))) {
        (0, _) => out.write_all(b" api=-")?,
        (_, Some(name)) => write!(out, " api={}", quote_word(name))?,
        (number, None) => write!(out, " api={number}")?,
    }
    match event.device {
        NO_DEVICE => out.write_all(b" dev=?")?,
        device => write!(out, " dev={device}")?,
    }
    write!(
        out,
        " addr={:#x} size={} aux0={} aux1={} rc={} python={} native={}",
        event.addr,
        event.size,
        event.aux[0],
        event.aux[1],
        event.result,
        event.python_stack.0,
        event.native_stack.0
    )?;
    if event.flags != 0 {
        write!(out, " flags={}", event.flags)?;
    }
    if let Some(held) = held.filter(|_| event.kind.is_driver_call()) {
        write!(out, " held={}", held.record(event))?;
    }
    if let Some(detail) = event.detail {
        write!(
            out,
            " requested={} stream={:#x} pool={:#x}",
            detail.requested_bytes, detail.stream, detail.pool
        )?;
    }
    if event.kind == EventKind::BLOCK_FREE && event.flags & FLAG_FREED_AT_ONCE != 0 {
        out.write_all(b" completed=1")?;
    }
    out.write_all(if event.in_flight { b" in_flight\n" } else { b"\n" })
}

fn write_definitions(out: &mut impl Write, head: &TraceHead) -> std::io::Result<()> {
    let definitions = &head.definitions;
    let mut codes: Vec<_> = definitions.codes.values().collect();
    codes.sort_by_key(|code| code.id);
    for code in codes {
        let (id, file, name, line) =
            (code.id.0, quote_word(&code.file), quote_word(&code.name), code.first_line);
        writeln!(out, "code id={id} file={file} name={name} line={line}")?;
    }
    let mut nodes: Vec<_> = definitions.python.values().collect();
    nodes.sort_by_key(|node| node.id);
    for node in nodes {
        let code = definitions.codes.get(&node.code);
        let line = code.and_then(|code| line_at(code, node.offset_bytes));
        let line = line.map_or_else(|| "?".to_owned(), |line| line.to_string());
        let (file, function) =
            code.map_or(("?".to_owned(), "?".to_owned()), |c| (quote_word(&c.file), quote_word(&c.name)));
        let (id, parent) = (node.id.0, node.parent.0);
        let link = match node.link {
            FrameLink::Unknown => "",
            FrameLink::Python => " link=python",
            FrameLink::C => " link=c",
            FrameLink::Backward => " link=backward",
            FrameLink::Native => " link=native",
            FrameLink::InsideBackward => " link=inside_backward",
        };
        write!(out, "frame id={id} parent={parent} file={file} line={line} function={function}{link}")?;
        if node.link == FrameLink::InsideBackward {
            write!(out, " forward={}", node.offset_bytes.cast_unsigned())?;
        }
        writeln!(out)?;
    }
    let mut nodes: Vec<_> = definitions.native.values().collect();
    nodes.sort_by_key(|node| node.id);
    for node in nodes {
        let (id, parent, address) = (node.id.0, node.parent.0, node.return_address);
        let module = definitions.module_at(address.saturating_sub(1));
        let place = module.map_or_else(
            || "module=? offset=?".to_owned(),
            |module| {
                format!(
                    "module={} offset={:#x}",
                    quote_word(&module.path),
                    address.wrapping_sub(module.load_bias)
                )
            },
        );
        writeln!(out, "native id={id} parent={parent} address={address:#x} {place}")?;
    }
    Ok(())
}

fn format_value(value: &MetaValue) -> String {
    match value {
        MetaValue::Number(number) => number.to_string(),
        MetaValue::Text(text) => text.clone(),
        MetaValue::List(list) => list.join(" "),
    }
}

/// The text as one word: with spaces, quotes or characters to escape it is quoted as in Rust.
fn quote_word(text: &str) -> String {
    let is_word = !text.is_empty()
        && text.chars().all(|c| !c.is_whitespace() && !needs_escape(c) && c != '"' && c != '\\');
    if is_word { text.to_owned() } else { format!("{text:?}") }
}
