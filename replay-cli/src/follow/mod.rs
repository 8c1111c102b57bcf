//! `gpumemtrace replay --follow`: prints the totals of a running program.
//!
//! About once a second, if the totals changed, one line goes to stderr. When the run is over,
//! `replay` prints its usual report on stdout. The ring file is read before the trace: an event may
//! then be seen twice, which is harmless, but is never missed.

mod file_tail;
mod followed_trace;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::terminal::units::format_bytes;
use gpumemtrace_format::reader::Item;
use gpumemtrace_replay::callsite::UserCodePaths;
use gpumemtrace_replay::report::RunView;
use gpumemtrace_replay::{RingFile, RunFollower};

use crate::exit::UnreadableInput;
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, format_duration};
use crate::terminal::status_line;
use crate::terminal::stderr::print_message;
use crate::trace::ring::RingReader;
use file_tail::TailChange;
use followed_trace::FollowedTrace;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
const PRINT_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait for the exit status that `gpumemtrace run` appends to a closed trace.
const EXIT_STATUS_WAIT: Duration = Duration::from_secs(1);
/// The run is over after this many polls in a row without a lock and without new data.
const MAX_QUIET_POLLS: u32 = 2;

/// Follows a trace until its run is over. Waits for the trace if it does not exist yet.
pub(crate) fn follow_to_end(path: &Path, user_code: &UserCodePaths) -> Result<(), UnreadableInput> {
    let unreadable = |why: String| UnreadableInput(format!("{} {why}", path.display()));
    loop {
        let mut trace = wait_for(path)?;
        let found = follow(&mut trace, path, user_code).map_err(|error| unreadable(error.to_string()))?;
        let why = match found {
            TailChange::Replaced => "was replaced by the trace of another run; following that one",
            TailChange::Truncated => "was truncated; following it from its start",
            TailChange::Gone => {
                status_line::erase();
                return Err(unreadable("was removed while --follow read it".to_owned()));
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
                    "gpumemtrace: {} does not exist or is empty; waiting for its run",
                    path.display()
                ));
            }
            Ok(None) => {}
            Err(error) => return Err(UnreadableInput(format!("{} {error}", path.display()))),
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Prints the totals until the run is over (`Nothing`) or the file changes under its name.
fn follow(
    trace: &mut FollowedTrace,
    path: &Path,
    user_code: &UserCodePaths,
) -> Result<TailChange, gpumemtrace_format::reader::OpenError> {
    let mut live = RunFollower::new(user_code.clone());
    let (mut ring_reader, mut has_said_unanswered) = (RingReader::new(path), false);
    let mut trace_id = None;
    let mut ended: Option<Instant> = None;
    let mut quiet_polls = 0;
    let mut printed = (Instant::now(), RunView::default());
    loop {
        let ring = ring_reader.read();
        if ring_reader.is_unanswered()
            && !std::mem::replace(&mut has_said_unanswered, true)
            && let RingFile::Unusable(why) = &ring
        {
            print_line(&format!("gpumemtrace: the ring file {why}"));
        }
        let is_locked = trace.is_locked();
        let found = trace.poll(&mut |item| match item {
            Item::Meta(meta) => {
                if let Some(id) = meta.text("trace_id") {
                    trace_id = Some(id.to_owned());
                }
            }
            Item::End(_) => ended = Some(Instant::now()),
            item => live.add_item(item),
        })?;
        match found {
            TailChange::Replaced | TailChange::Truncated | TailChange::Gone => {
                status_line::erase();
                return Ok(found);
            }
            TailChange::More => quiet_polls = 0,
            TailChange::Nothing => quiet_polls += u32::from(!is_locked),
        }
        if let RingFile::Loaded(ring) = ring
            && trace_id.as_ref() == Some(&format!("{:032x}", u128::from_be_bytes(ring.trace_id)))
        {
            live.add_ring(&ring);
        }
        if trace.take_gap() {
            live.skip_missing_events();
        }
        let is_over = match ended {
            Some(since) => !is_locked || since.elapsed() > EXIT_STATUS_WAIT,
            None => quiet_polls >= MAX_QUIET_POLLS,
        };
        if is_over || printed.0.elapsed() >= PRINT_INTERVAL {
            let view = live.take_view();
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

fn print_line(sentence: &str) {
    print_message(format_args!("{sentence}"));
}

/// Draws over the previous line on a terminal; otherwise prints a new line.
fn print_totals(line: &str) {
    if status_line::is_terminal() { status_line::draw(line) } else { print_message(format_args!("{line}")) }
}

fn format_totals(view: &RunView) -> String {
    let mut parts = vec![format_duration(view.span_ns), format_count(view.events, "event")];
    parts.extend(view.steps.map(|steps| format_count(u64::from(steps), "step")));
    let mut clauses = vec![parts.join(", ")];
    for (ordinal, device) in &view.devices {
        let torch = device.allocated.zip(device.reserved).map(|(allocated, reserved)| {
            format!("allocated {}, reserved {}, ", format_bytes(allocated), format_bytes(reserved))
        });
        let (torch, driver) = (torch.unwrap_or_default(), format_bytes(device.driver));
        clauses.push(format!("GPU {ordinal}: {torch}driver {driver}"));
    }
    if let Some(grown) = &view.grown {
        let (bytes, span) = (format_bytes(grown.bytes), format_duration(grown.span_ns));
        clauses.push(format!("most growth: +{bytes} in {span} at {}", short_site(&grown.site)));
    }
    clauses.join("; ")
}
