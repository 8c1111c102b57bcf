//! The traces that are served, and the folders in which they appear.
//!
//! Memory is proportional to the traces that are followed, of which there are at most
//! [`MAX_TRACES`]. A trace in a folder is followed if it is being recorded or has changed since the
//! server started; finished traces from before are passed over without reading them. The versions
//! of files tell what has changed, not their times, which a file server takes from its own clock.
//! After its end, a run stays for a while, so that a last scrape sees its last values, and is then
//! dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::exposition::{Samples, TraceSample};
use super::served_run::ServedRun;
use crate::exit::UnreadableInput;
use crate::follow::TailChange;
use crate::terminal::escape::escape_path;
use crate::terminal::stderr::print_message;
use crate::trace::find::{has_extension, is_side_file};

/// Traces followed at once. Each has up to three open files.
pub(super) const MAX_TRACES: usize = 128;
/// Threads that read traces for a scrape. Most of their time, they wait for a recorder to release
/// its ring file, at most a quarter of a second.
const MAX_THREADS: usize = 16;

/// Tells the versions of a file apart. A renamed file keeps its version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileVersion {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    length_bytes: u64,
}

impl FileVersion {
    fn identity(self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

pub(super) struct TraceSet {
    paths: Vec<PathBuf>,
    keep_ended: Duration,
    runs: BTreeMap<PathBuf, ServedRun>,
    /// Files that were there when the server started.
    existing: BTreeSet<FileVersion>,
    /// Files that are not followed unless they change.
    passed_over: BTreeSet<FileVersion>,
    /// Files that are no traces, or damaged at their start.
    unreadable: BTreeSet<PathBuf>,
    /// Running traces above [`MAX_TRACES`].
    skipped: u64,
    /// How often new traces were looked for.
    searches: u64,
}

impl TraceSet {
    /// Fails if a path does not exist, or cannot be read.
    pub(super) fn open(paths: Vec<PathBuf>, keep_ended: Duration) -> Result<Self, UnreadableInput> {
        for path in &paths {
            let unreadable =
                |why: &dyn std::fmt::Display| UnreadableInput(format!("{} {why}", path.display()));
            let cannot_be_read = |error| unreadable(&format!("cannot be read: {error}"));
            let facts = std::fs::metadata(path).map_err(cannot_be_read)?;
            if facts.is_dir() {
                std::fs::read_dir(path).map_err(cannot_be_read)?;
            } else if facts.is_file() {
                ServedRun::open(path).map_err(|error| unreadable(&error))?;
            } else {
                return Err(unreadable(&"is neither a trace nor a folder"));
            }
        }
        let mut this = Self {
            paths,
            keep_ended,
            runs: BTreeMap::new(),
            existing: BTreeSet::new(),
            passed_over: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            skipped: 0,
            searches: 0,
        };
        this.existing = this.find_files().keys().filter_map(|path| read_version(path)).collect();
        Ok(this)
    }

    /// Reads what is new, looks for new traces, and drops those that ended long ago.
    pub(super) fn update(&mut self, reads_rings: bool) {
        self.follow_renames();
        poll_all(self.runs.values_mut().collect(), reads_rings);
        let keep_ended = self.keep_ended;
        let passed_over = &mut self.passed_over;
        self.runs.retain(|path, run| {
            if let Err(error) = &run.found {
                print_message(format_args!("gpumemtrace: {} {error}", path.display()));
            }
            if matches!(run.found, Ok(TailChange::Nothing | TailChange::More)) {
                let is_kept = run.time_since_end().is_none_or(|since| since < keep_ended);
                if !is_kept && let Some(version) = read_version(path) {
                    passed_over.insert(version);
                }
                return is_kept;
            }
            // Gone, or another file now, which is opened below.
            false
        });
        let added = self.add_new_traces();
        let runs = self.runs.iter_mut().filter(|(path, _)| added.contains(*path));
        poll_all(runs.map(|(_, run)| run).collect(), reads_rings);
    }

    /// Goes on with the runs whose traces have another name now. A run that is opened anew would
    /// have the same series, but report its maxima and its end again.
    fn follow_renames(&mut self) {
        let is_elsewhere = |(path, run): (&PathBuf, &ServedRun)| {
            let identity = read_version(path).map(FileVersion::identity);
            (!identity.is_some_and(|identity| run.is_file(identity))).then(|| path.clone())
        };
        let gone: Vec<PathBuf> = self.runs.iter().filter_map(is_elsewhere).collect();
        if gone.is_empty() {
            return;
        }
        let files = self.find_files();
        for old in gone {
            let Some(mut run) = self.runs.remove(&old) else { continue };
            let is_its = |path: &&PathBuf| read_version(path).is_some_and(|now| run.is_file(now.identity()));
            let found = files.keys().find(is_its).filter(|path| !self.runs.contains_key(*path)).cloned();
            let now = found.filter(|path| run.follow_rename(path)).unwrap_or(old);
            self.runs.insert(now, run);
        }
    }

    /// Opens the traces that appeared. Returns their paths.
    fn add_new_traces(&mut self) -> BTreeSet<PathBuf> {
        let mut added = BTreeSet::new();
        let (passed_over, unreadable) =
            (std::mem::take(&mut self.passed_over), std::mem::take(&mut self.unreadable));
        self.skipped = 0;
        self.searches += 1;
        for (path, is_named) in self.find_files() {
            let Some(version) = read_version(&path).filter(|_| !self.runs.contains_key(&path)) else {
                continue;
            };
            if passed_over.contains(&version) {
                if unreadable.contains(&path) {
                    self.unreadable.insert(path);
                }
                self.passed_over.insert(version);
                continue;
            }
            match ServedRun::open(&path) {
                Ok(Some(mut run)) if is_named || run.is_recording() || !self.existing.contains(&version) => {
                    run.copy_order = (self.searches, !run.is_recording());
                    if self.runs.len() < MAX_TRACES {
                        self.runs.insert(path.clone(), run);
                        added.insert(path);
                    } else {
                        self.skipped += 1;
                    }
                }
                Ok(Some(_)) => drop(self.passed_over.insert(version)),
                Ok(None) => {}
                Err(error) => {
                    print_message(format_args!("gpumemtrace: {} {error}", path.display()));
                    self.unreadable.insert(path);
                    self.passed_over.insert(version);
                }
            }
        }
        added
    }

    /// All files that may be traces, each once, with whether the user named it.
    fn find_files(&self) -> BTreeMap<PathBuf, bool> {
        let mut files = BTreeMap::new();
        for path in &self.paths {
            if path.is_dir() {
                let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
                let traces = entries.map(|entry| entry.path()).filter(|path| is_named_like_trace(path));
                for path in traces {
                    files.entry(path).or_insert(false);
                }
            } else {
                files.insert(path.clone(), true);
            }
        }
        files
    }

    /// The present values of all traces. Maxima include those of the reading before unless that
    /// is `confirmed`.
    pub(super) fn read(&mut self, confirmed: bool) -> Samples {
        let mut samples =
            Samples { unreadable: self.unreadable.len() as u64, skipped: self.skipped, ..Samples::default() };
        // Of copies, the first to be found keeps the labels of the run.
        let mut runs: Vec<_> = self.runs.iter_mut().collect();
        runs.sort_by_key(|(_, run)| run.copy_order);
        for (path, run) in runs {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            let mut sample = run.read(&name, confirmed);
            // Two copies of a trace would have the same series.
            let is_same = |other: &TraceSample| other.labels == sample.labels;
            if samples.traces.iter().any(is_same) {
                sample.labels.set_trace_id(escape_path(path));
            }
            samples.traces.push(sample);
        }
        samples.limit_devices();
        samples
    }
}

/// Polls traces: for ring files on several threads, which mostly wait, otherwise on this one.
fn poll_all(runs: Vec<&mut ServedRun>, reads_rings: bool) {
    let threads = if reads_rings { runs.len().min(MAX_THREADS) } else { 1 };
    let left = Mutex::new(runs.into_iter());
    let work = || {
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(run) = next else { break };
            run.poll(reads_rings);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
}

/// The version of a regular file; `None` for anything else. Opening a pipe would block.
fn read_version(path: &Path) -> Option<FileVersion> {
    let facts = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let modified = (facts.mtime(), facts.mtime_nsec());
    Some(FileVersion { device: facts.dev(), inode: facts.ino(), modified, length_bytes: facts.len() })
}

/// True for `NAME.trace`, but not for the files that go with it: `NAME.ID.stacks.trace` and full
/// parts, `NAME.ID.partN.trace`.
fn is_named_like_trace(path: &Path) -> bool {
    let kind = path.file_stem().map(Path::new).and_then(Path::extension).unwrap_or_default();
    let part = kind.to_str().and_then(|kind| kind.strip_prefix("part"));
    let is_full_part = part.is_some_and(|number| number.parse::<u64>().is_ok());
    has_extension(path, "trace") && !is_side_file(path) && !is_full_part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companions_of_a_trace_are_no_traces() {
        let is_trace = |name: &str| is_named_like_trace(Path::new(name));
        assert!(is_trace("a/run.trace") && is_trace("run.rank3.trace") && is_trace("run.parts.trace"));
        for name in
            ["run.trace.ring", "run.0a1b2c3d.stacks.trace", "run.0a1b2c3d.part12.trace", "trace", "a/.trace"]
        {
            assert!(!is_trace(name), "{name}");
        }
    }
}
