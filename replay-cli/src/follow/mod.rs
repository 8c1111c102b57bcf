//! `gpumemtrace replay --follow`: the present state of running programs, then their report.
//!
//! About once a second, if the totals changed, each program gets a line on stderr: what `replay`
//! would find now, when memory runs out, and how full the GPUs are. When all runs are over, or at
//! Ctrl-C, `replay` prints its usual report on stdout. `serve-metrics` reads such runs without
//! printing.

mod file_tail;
mod finding;
mod followed_run;
mod followed_trace;
mod recorder_presence;
mod totals;
mod watched_trace;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpumemtrace_replay::callsite::UserCodePaths;

use crate::exit::UnreadableInput;
use crate::terminal::format::format_count;
use crate::terminal::status_line;
use crate::terminal::stderr::print_message;
use crate::trace::find::{TRACES, find_files, is_pattern};
use file_tail::FileTail;
pub(crate) use file_tail::TailChange;
use finding::FindingThread;
pub(crate) use followed_run::FollowedRun;
use recorder_presence::RecorderLock;
use watched_trace::WatchedTrace;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
const PRINT_INTERVAL: Duration = Duration::from_secs(1);
/// How often folders are searched for new traces.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// Most programs with a line on the terminal.
const MAX_LINES: usize = 16;

/// Follows traces until their runs are over, or until an interrupt. Waits for a trace that does not
/// exist yet, and for the first one in a folder. Returns the traces for the report.
pub(crate) fn follow_to_end(
    paths: &[PathBuf],
    user_code: &UserCodePaths,
) -> Result<Vec<PathBuf>, UnreadableInput> {
    let findings = FindingThread::start(user_code.clone())
        .map_err(|error| UnreadableInput(format!("no thread can be started: {error}")))?;
    let mut watch = Watch {
        paths,
        user_code,
        traces: Vec::new(),
        findings,
        searched: None,
        finished: BTreeMap::new(),
        printed: Instant::now(),
        analysed: 0,
    };
    let mut has_something = false;
    loop {
        watch.search();
        watch.poll()?;
        if !has_something && watch.traces.iter().any(WatchedTrace::has_begun) {
            has_something = true;
            status_line::finish_on_interrupt(true);
        }
        watch.print();
        if watch.is_over() || status_line::is_asked_to_finish() {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    // From now on, an interrupt ends the command.
    status_line::finish_on_interrupt(false);
    status_line::erase();
    let removed = watch.traces.iter().find(|trace| trace.is_removed()).map(|trace| trace.path.clone());
    let reported = watch.traces.into_iter().filter(WatchedTrace::has_begun);
    let reported: Vec<PathBuf> = reported.map(|trace| trace.path).collect();
    match removed {
        Some(removed) if reported.is_empty() => {
            Err(UnreadableInput(format!("{} was removed while --follow read it", removed.display())))
        }
        _ => Ok(reported),
    }
}

/// Inode and length: a trace that grows has another version.
type FileVersion = (u64, u64);

fn read_version(path: &Path) -> Option<FileVersion> {
    std::fs::metadata(path).ok().map(|facts| (facts.ino(), facts.len()))
}

/// True if no recorder holds the trace, as far as that shows here.
fn is_unlocked(path: &Path) -> bool {
    FileTail::open(path).ok().flatten().is_none_or(|tail| tail.recorder_lock() == RecorderLock::Free)
}

/// The traces that are followed.
struct Watch<'a> {
    paths: &'a [PathBuf],
    user_code: &'a UserCodePaths,
    traces: Vec<WatchedTrace>,
    findings: FindingThread,
    searched: Option<Instant>,
    /// Traces in folders whose program had already ended at the first search, with their versions.
    finished: BTreeMap<PathBuf, Option<FileVersion>>,
    printed: Instant,
    /// The trace that was analysed last.
    analysed: usize,
}

impl Watch<'_> {
    /// Adds the traces that appeared in folders, or match a pattern.
    fn search(&mut self) {
        let is_first = self.searched.is_none();
        if self.searched.is_some_and(|searched| searched.elapsed() < SEARCH_INTERVAL) {
            return;
        }
        self.searched = Some(Instant::now());
        for path in self.paths {
            if !path.is_dir() && !is_pattern(path) {
                self.add(path.clone());
                continue;
            }
            for found in find_files(std::slice::from_ref(path), TRACES).unwrap_or_default() {
                let version = read_version(&found);
                if is_first && is_unlocked(&found) {
                    self.finished.insert(found, version);
                } else if self.finished.get(&found) != Some(&version) {
                    self.add(found);
                }
            }
        }
        if is_first {
            self.announce_waits();
        }
    }

    fn add(&mut self, path: PathBuf) {
        if self.traces.iter().all(|trace| trace.path != path) {
            self.traces.push(WatchedTrace::new(path));
        }
    }

    /// Says what is waited for.
    fn announce_waits(&self) {
        let is_missing =
            |trace: &&WatchedTrace| std::fs::metadata(&trace.path).map_or(0, |facts| facts.len()) == 0;
        for trace in self.traces.iter().filter(is_missing) {
            let path = trace.path.display();
            print_message(format_args!(
                "gpumemtrace: {path} does not exist or is empty; waiting for its run"
            ));
        }
        if self.traces.is_empty() {
            let paths: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
            let finished = match self.finished.len() as u64 {
                0 => String::new(),
                count => format!(" ({} left out)", format_count(count, "finished trace")),
            };
            print_message(format_args!(
                "gpumemtrace: no running program writes a trace in {}{finished}; waiting for one",
                paths.join(", ")
            ));
        }
    }

    fn poll(&mut self) -> Result<(), UnreadableInput> {
        let labels = self.labels();
        let is_alone = self.traces.len() == 1;
        for (trace, label) in self.traces.iter_mut().zip(&labels) {
            match trace.poll(self.user_code) {
                Err(error) if is_alone => return Err(error),
                Err(error) => {
                    print_message(format_args!("gpumemtrace: {error}"));
                    trace.give_up();
                }
                Ok(()) => {}
            }
            if !status_line::is_terminal()
                && let Some(line) = trace.take_last_line(label.as_deref())
            {
                print_message(format_args!("{line}"));
            }
        }
        if let Some((path, finding)) = self.findings.take()
            && let Some(at) = self.traces.iter().position(|trace| trace.path == path)
        {
            self.traces[at].set_finding(finding, labels[at].as_deref());
        }
        if self.findings.is_due() {
            let count = self.traces.len();
            let next = (1..=count).map(|step| (self.analysed + step) % count);
            if let Some(at) = next.into_iter().find(|at| self.traces[*at].is_running()) {
                self.findings.ask(&self.traces[at].path);
                self.analysed = at;
            }
        }
        Ok(())
    }

    /// True if no trace is running or waited for.
    fn is_over(&self) -> bool {
        !self.traces.is_empty() && self.traces.iter().all(WatchedTrace::is_over)
    }

    /// The names of the files, if there are several.
    fn labels(&self) -> Vec<Option<String>> {
        let name =
            |trace: &WatchedTrace| trace.path.file_name().map(|name| name.to_string_lossy().into_owned());
        self.traces.iter().map(|trace| name(trace).filter(|_| self.traces.len() > 1)).collect()
    }

    /// Draws the lines of the running programs over the previous ones on a terminal; otherwise
    /// prints those that changed.
    fn print(&mut self) {
        if self.printed.elapsed() < PRINT_INTERVAL {
            return;
        }
        self.printed = Instant::now();
        let labels = self.labels();
        let is_terminal = status_line::is_terminal();
        let width = if is_terminal { status_line::width() } else { usize::MAX };
        let lines = self.traces.iter_mut().zip(&labels);
        let lines: Vec<(String, bool)> =
            lines.filter_map(|(trace, label)| trace.line(label.as_deref(), width)).collect();
        if is_terminal {
            let more = lines.len().saturating_sub(MAX_LINES);
            let mut shown: Vec<String> = lines.into_iter().take(MAX_LINES).map(|(line, _)| line).collect();
            if more > 0 {
                shown.push(format!("and {more} more"));
            }
            status_line::draw_all(&shown);
        } else {
            for (line, _) in lines.iter().filter(|(_, has_changed)| *has_changed) {
                print_message(format_args!("{line}"));
            }
        }
    }
}
