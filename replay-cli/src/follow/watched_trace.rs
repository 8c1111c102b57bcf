//! One trace of `replay --follow`: waited for, read as it grows, and over.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_replay::callsite::UserCodePaths;
use gpumemtrace_replay::report::RunView;

use super::file_tail::TailChange;
use super::finding::LiveFinding;
use super::followed_run::FollowedRun;
use super::totals::format_line;
use crate::exit::UnreadableInput;
use crate::terminal::stderr::print_message;

/// After this long without events, a line says why the report does not come yet.
const QUIET_NOTE_DELAY: Duration = Duration::from_secs(10);

/// A trace, and what was last seen of it.
pub(super) struct WatchedTrace {
    pub(super) path: PathBuf,
    state: WatchState,
    view: RunView,
    finding: Option<LiveFinding>,
    has_last_line: bool,
    has_said_unanswered: bool,
    has_said_quiet: bool,
}

enum WatchState {
    /// The file does not exist or is empty.
    Waiting,
    Running(Box<FollowedRun>),
    Over,
    /// The file is gone, or cannot be read.
    Removed,
}

impl WatchedTrace {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            state: WatchState::Waiting,
            view: RunView::default(),
            finding: None,
            has_last_line: false,
            has_said_unanswered: false,
            has_said_quiet: false,
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(self.state, WatchState::Waiting)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, WatchState::Running(_))
    }

    /// True if there is something to report.
    pub(super) fn has_begun(&self) -> bool {
        matches!(self.state, WatchState::Running(_) | WatchState::Over)
    }

    pub(super) fn is_removed(&self) -> bool {
        matches!(self.state, WatchState::Removed)
    }

    /// True once the recorder has closed the trace, the program has died, or the trace is gone.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, WatchState::Over | WatchState::Removed)
    }

    /// Reads what is new.
    pub(super) fn poll(&mut self, user_code: &UserCodePaths) -> Result<(), UnreadableInput> {
        self.try_poll(user_code).map_err(|error| UnreadableInput(format!("{} {error}", self.path.display())))
    }

    fn try_poll(&mut self, user_code: &UserCodePaths) -> Result<(), OpenError> {
        if self.is_waiting()
            && let Some(run) = FollowedRun::open(&self.path, user_code)?
        {
            self.state = WatchState::Running(Box::new(run));
        }
        let WatchState::Running(run) = &mut self.state else { return Ok(()) };
        let found = run.poll()?;
        if let Some(why) = run.silence()
            && !std::mem::replace(&mut self.has_said_unanswered, true)
        {
            print_message(format_args!("gpumemtrace: the ring file of {} {why}", self.path.display()));
        }
        if let Some((quiet, limit)) = run.unproven_quiet_time()
            && quiet >= QUIET_NOTE_DELAY
            && !std::mem::replace(&mut self.has_said_quiet, true)
        {
            print_message(format_args!(
                "gpumemtrace: no new events in {}, and its lock does not show whether the program runs; the report \
                 follows after {} s without events",
                self.path.display(),
                limit.as_secs()
            ));
        }
        let is_over = run.is_over();
        let restart = match found {
            TailChange::Nothing | TailChange::More => {
                if is_over {
                    let view = run.live.take_view();
                    self.has_last_line = view != self.view;
                    self.view = view;
                    self.state = WatchState::Over;
                }
                return Ok(());
            }
            TailChange::Replaced => "was replaced by the trace of another run; following that one",
            TailChange::Truncated => "was truncated; following it from its start",
            TailChange::Gone => {
                self.state = WatchState::Removed;
                return Ok(());
            }
        };
        print_message(format_args!("gpumemtrace: {} {restart}", self.path.display()));
        *self = Self::new(std::mem::take(&mut self.path));
        Ok(())
    }

    /// Follows it no more: it cannot be read.
    pub(super) fn give_up(&mut self) {
        self.state = WatchState::Removed;
    }

    /// Notes what an analysis found. Says it in a line if it is new.
    pub(super) fn set_finding(&mut self, finding: Option<LiveFinding>, label: Option<&str>) {
        let subject = |finding: &Option<LiveFinding>| finding.as_ref().map(|found| found.subject.clone());
        if let Some(found) = &finding
            && subject(&self.finding) != subject(&finding)
        {
            let label = label.map(|label| format!("{label}: ")).unwrap_or_default();
            let left = found.describe_time_left(Instant::now()).map(|left| format!("; {left}"));
            print_message(format_args!("gpumemtrace: {label}{}{}", found.text, left.unwrap_or_default()));
        }
        self.finding = finding;
    }

    /// The line of the running program, and whether it changed; `None` unless it runs.
    pub(super) fn line(&mut self, label: Option<&str>, width: usize) -> Option<(String, bool)> {
        let WatchState::Running(run) = &mut self.state else { return None };
        let view = run.live.take_view();
        let has_changed = view != self.view;
        self.view = view;
        Some((self.format(label, width), has_changed))
    }

    /// The last line of a program that is over, once, if it differs from the one before.
    pub(super) fn take_last_line(&mut self, label: Option<&str>) -> Option<String> {
        std::mem::take(&mut self.has_last_line).then(|| self.format(label, usize::MAX))
    }

    fn format(&self, label: Option<&str>, width: usize) -> String {
        let finding = self.finding.as_ref();
        let left = finding.and_then(|found| found.describe_time_left(Instant::now()));
        let texts: Vec<String> = left.into_iter().chain(finding.map(|found| found.text.clone())).collect();
        format_line(label, &texts, &self.view, width)
    }
}
