//! Reads traces on all cores. Only the summary of a trace is kept, so memory grows with the threads
//! and not with the traces.

use std::fs::File;
use std::io::Read as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use gpumemtrace_fleet::{Summary, TraceSummary};
use gpumemtrace_replay::callsite::{NameScope, UserCodePaths};
use gpumemtrace_replay::{AnalysisOptions, analyse_with_head, report, symbolize_report};

use super::SummarizeArgs;
use crate::exit::UnreadableInput;
use crate::render::wording::fill_report;
use crate::render::wording::sites::format_site;
use crate::symbolize::Resolver;
use crate::terminal::format::format_number;
use crate::terminal::status_line;
use crate::trace::open::TraceSource;

/// The first bytes of a summary, as this command writes it.
const SUMMARY_START: &[u8] = b"{\"schema\":\"gpumemtrace.summary\"";
const FIRST_LINE_AFTER: Duration = Duration::from_secs(1);

/// The summary of all files. Files that cannot be read are named in it.
pub(super) fn summarize_files(files: &[PathBuf], args: &SummarizeArgs) -> anyhow::Result<Summary> {
    let user_code = args.reading.user_code()?;
    let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let jobs = args.jobs.map_or_else(cores, usize::from).min(files.len());
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    let (sender, parts) = channel();
    Ok(thread::scope(|scope| {
        for _ in 0..jobs {
            let (sender, next, user_code) = (sender.clone(), &next, &user_code);
            scope.spawn(move || {
                let mut resolver = Resolver::new(args.reading.uses_symbol_cache());
                while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let read = summarize_file(path, user_code, &mut resolver);
                    let part = read.unwrap_or_else(|UnreadableInput(why)| {
                        Summary::of_unreadable(path.display().to_string(), why)
                    });
                    if sender.send(part).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut done = 0;
        let counted = parts.iter().inspect(|_| {
            done += 1;
            if args.reading.shows_progress() && began.elapsed() > FIRST_LINE_AFTER {
                status_line::draw(&describe_progress(done, files.len(), began.elapsed()));
            }
        });
        let summary = Summary::merge_all(counted);
        status_line::erase();
        summary
    }))
}

fn describe_progress(done: usize, all: usize, took: Duration) -> String {
    let left = took.as_secs_f64() / done.max(1) as f64 * (all - done) as f64;
    format!("{} of {} traces, {left:.0} s left", format_number(done as u64), format_number(all as u64))
}

fn summarize_file(
    path: &Path,
    user_code: &UserCodePaths,
    resolver: &mut Resolver,
) -> Result<Summary, UnreadableInput> {
    if let Some(text) = read_summary(path)? {
        let refuse = |why| UnreadableInput(format!("{} {why}", path.display()));
        return Summary::parse(&text).map_err(refuse);
    }
    let (file, ring) = TraceSource::find(path)?;
    let options = AnalysisOptions { user_code: user_code.clone(), ..AnalysisOptions::default() };
    let (analysis, _) = file.with_input(ring, |input| analyse_with_head(input, options))?;
    let analyses = [analysis];
    let mut report = report(&analyses, &[]);
    symbolize_report(&mut report, &analyses, NameScope { stacks: false, ..NameScope::ALL }, resolver);
    fill_report(&mut report);
    let summary = TraceSummary::of_report(&report, &format_site);
    summary.map(Summary::of_trace).ok_or_else(|| UnreadableInput(format!("{} is not a trace", file.name)))
}

/// The text of the file, if it begins like a summary.
fn read_summary(path: &Path) -> Result<Option<String>, UnreadableInput> {
    let mut start = [0; SUMMARY_START.len()];
    // Whatever cannot be opened here is refused as a trace, with its reason.
    let is_file = std::fs::metadata(path).is_ok_and(|facts| facts.is_file());
    let begun = is_file.then(|| File::open(path).and_then(|mut file| file.read_exact(&mut start)));
    if !matches!(begun, Some(Ok(()))) || start != *SUMMARY_START {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path);
    text.map(Some).map_err(|error| UnreadableInput(format!("{} cannot be read: {error}", path.display())))
}
