//! `gpumemtrace replay --follow`: what a run holds, while it runs.
//!
//! Constraint: nobody can analyse what has not happened, and somebody waits at a terminal or reads a log. Consequence: about once a
//! second one line with the totals, on stderr, where they changed; and when the run is over, the report that any replay of it gives,
//! on stdout. The ring is read before the trace, as everywhere: an event may then be seen twice, which does no harm, and not never.

mod file_tail;
mod followed_trace;

use std::path::Path;
use std::time::{Duration, Instant};

use gpumemtrace_format::reader::Item;
use gpumemtrace_replay::RingFile;
use gpumemtrace_replay::live::{Live, View};
use gpumemtrace_replay::origin::OwnPaths;
use gpumemtrace_replay::sections::size;

use crate::exit::UnreadableInput;
use crate::render::text::short_site;
use crate::terminal::format::{format_count, format_duration};
use crate::terminal::status_line;
use crate::trace::open::{read_ring, ring_path};
use file_tail::TailChange;
use followed_trace::FollowedTrace;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
const PRINT_INTERVAL: Duration = Duration::from_secs(1);
/// How long the end of the process is waited for once the trace is closed: `gpumemtrace run` notes what became of it.
const EXIT_STATUS_WAIT: Duration = Duration::from_secs(1);
/// Looks at which nobody holds the trace and nothing comes, before its run is over.
const MAX_QUIET_POLLS: u32 = 2;

/// Follows a trace until its run is over.
pub(crate) fn follow_to_end(path: &Path, own: &OwnPaths) -> Result<(), UnreadableInput> {
    let unreadable = |why: String| UnreadableInput(format!("{} {why}", path.display()));
    loop {
        let mut trace = wait_for(path)?;
        let found = follow(&mut trace, path, own).map_err(|error| unreadable(error.to_string()))?;
        let why = match found {
            TailChange::Replaced => "is another run's now; following that one",
            TailChange::Cut => "was cut; following it from its start",
            TailChange::Gone => {
                status_line::erase();
                return Err(unreadable("was removed while it was followed".to_owned()));
            }
            TailChange::Nothing | TailChange::More => return Ok(()),
        };
        print_line(&format!("gpumemtrace: {} {why}", path.display()));
    }
}

fn wait_for(path: &Path) -> Result<FollowedTrace, UnreadableInput> {
    let mut has_announced_wait = false;
    loop {
        match FollowedTrace::open(path) {
            Ok(Some(trace)) => return Ok(trace),
            Ok(None) if !has_announced_wait => {
                has_announced_wait = true;
                print_line(&format!(
                    "gpumemtrace: {} has nothing in it yet; waiting for its run",
                    path.display()
                ));
            }
            Ok(None) => {}
            Err(error) => return Err(UnreadableInput(format!("{} {error}", path.display()))),
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// `Nothing` when the run is over.
fn follow(
    trace: &mut FollowedTrace,
    path: &Path,
    own: &OwnPaths,
) -> Result<TailChange, gpumemtrace_format::reader::OpenError> {
    let mut live = Live::new(own.clone());
    let mut trace_id = None;
    let mut ended: Option<Instant> = None;
    let mut quiet_polls = 0;
    let mut printed = (Instant::now(), View::default());
    loop {
        let ring = read_ring(&ring_path(path));
        let is_locked = trace.is_locked();
        let found = trace.poll(&mut |item| match item {
            Item::Meta(meta) => {
                if let Some(id) = meta.text("trace_id") {
                    trace_id = Some(id.to_owned());
                }
            }
            Item::End(_) => ended = Some(Instant::now()),
            item => live.take(item),
        })?;
        match found {
            TailChange::Replaced | TailChange::Cut | TailChange::Gone => {
                status_line::erase();
                return Ok(found);
            }
            TailChange::More => quiet_polls = 0,
            TailChange::Nothing => quiet_polls += u32::from(!is_locked),
        }
        if let RingFile::Loaded(ring) = ring
            && trace_id.as_ref() == Some(&format!("{:032x}", u128::from_be_bytes(ring.trace_id)))
        {
            live.take_ring(&ring);
        }
        if trace.take_gap() {
            live.give_up_missing();
        }
        let is_over = match ended {
            Some(since) => !is_locked || since.elapsed() > EXIT_STATUS_WAIT,
            None => quiet_polls >= MAX_QUIET_POLLS,
        };
        if is_over || printed.0.elapsed() >= PRINT_INTERVAL {
            let view = live.look();
            if view != printed.1 {
                print_totals(&format_totals(&view));
            }
            printed = (Instant::now(), view);
        }
        if is_over {
            status_line::erase();
            return Ok(TailChange::Nothing);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A sentence.
fn print_line(sentence: &str) {
    status_line::erase();
    eprintln!("{sentence}");
}

/// Over the line before, where it can be; else below it.
fn print_totals(line: &str) {
    if status_line::is_terminal() { status_line::draw(line) } else { eprintln!("{line}") }
}

fn format_totals(view: &View) -> String {
    let mut parts = vec![format_duration(view.span_ns), format_count(view.events, "event")];
    parts.extend(view.steps.map(|steps| format_count(u64::from(steps), "step")));
    let mut clauses = vec![parts.join(", ")];
    for (ordinal, device) in &view.devices {
        let torch = device
            .torch
            .map(|(live, reserved)| format!("{} in tensors, {} reserved, ", size(live), size(reserved)));
        let (torch, driver) = (torch.unwrap_or_default(), size(device.driver));
        clauses.push(format!("device {ordinal}: {torch}{driver} from the driver"));
    }
    if let Some(grown) = &view.grown {
        let (bytes, span) = (size(grown.bytes), format_duration(grown.span_ns));
        clauses.push(format!("most growth: {} {bytes} in {span}", short_site(&grown.site)));
    }
    clauses.join("; ")
}
