//! `gpumemtrace replay --follow`: prints the totals of a running program.
//!
//! About once a second, if the totals changed, one line goes to stderr. When the run is over,
//! `replay` prints its usual report on stdout. `serve-metrics` reads such runs without printing.

mod file_tail;
mod followed_run;
mod followed_trace;
mod recorder_presence;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::callsite::UserCodePaths;
use gpumemtrace_replay::report::RunView;

use crate::exit::UnreadableInput;
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, format_duration};
use crate::terminal::status_line;
use crate::terminal::stderr::print_message;
pub(crate) use file_tail::TailChange;
pub(crate) use followed_run::FollowedRun;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
const PRINT_INTERVAL: Duration = Duration::from_secs(1);
/// After this long without events, a line says why the report does not come yet.
const QUIET_NOTE_DELAY: Duration = Duration::from_secs(10);

/// Follows a trace until its run is over. Waits for the trace if it does not exist yet.
pub(crate) fn follow_to_end(path: &Path, user_code: &UserCodePaths) -> Result<(), UnreadableInput> {
    let unreadable = |why: String| UnreadableInput(format!("{} {why}", path.display()));
    loop {
        let mut run = wait_for(path, user_code)?;
        let found = follow(&mut run).map_err(|error| unreadable(error.to_string()))?;
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

fn wait_for(path: &Path, user_code: &UserCodePaths) -> Result<FollowedRun, UnreadableInput> {
    let mut has_announced_wait = false;
    loop {
        match FollowedRun::open(path, user_code) {
            Ok(Some(run)) => return Ok(run),
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
fn follow(run: &mut FollowedRun) -> Result<TailChange, gpumemtrace_format::reader::OpenError> {
    let (mut has_said_unanswered, mut has_said_quiet) = (false, false);
    let mut printed = (Instant::now(), RunView::default());
    loop {
        let found = run.poll()?;
        if let Some(why) = run.silence()
            && !std::mem::replace(&mut has_said_unanswered, true)
        {
            print_line(&format!("gpumemtrace: the ring file {why}"));
        }
        if let Some((quiet, limit)) = run.unproven_quiet_time()
            && quiet >= QUIET_NOTE_DELAY
            && !std::mem::replace(&mut has_said_quiet, true)
        {
            print_line(&format!(
                "gpumemtrace: no new events, and the lock of the trace does not show whether the program runs; the \
                 report follows after {} s without events",
                limit.as_secs()
            ));
        }
        if !matches!(found, TailChange::Nothing | TailChange::More) {
            status_line::erase();
            return Ok(found);
        }
        let is_over = run.is_over();
        if is_over || printed.0.elapsed() >= PRINT_INTERVAL {
            let view = run.live.take_view();
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
