//! Reads traces on all cores. Only the summary of a trace is kept.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use gpumemtrace_multirun::Summary;
use gpumemtrace_replay::callsite::UserCodePaths;
use gpumemtrace_replay::{AnalysisOptions, analyse_with_head};

use crate::commands::args::jobs::JobsArgs;
use crate::commands::args::trace::TraceArgs;
use crate::exit::UnreadableInput;
use crate::symbolize::Resolver;
use crate::trace::many::read_many;
use crate::trace::open::{TraceSource, begins_like_summary};
use crate::trace::summary::{ReportInspector, summarize_analysis};

/// Most bytes of a file with a summary, which is read whole: room for 100,000 traces.
const MAX_SUMMARY_BYTES: u64 = 256 << 20;

/// The summary of all files. Files that cannot be read are named in it. `inspect` gets the report
/// of each trace, in any order.
pub(crate) fn summarize_files(
    files: &[PathBuf],
    reading: &TraceArgs,
    jobs: JobsArgs,
    inspect: &ReportInspector<'_>,
) -> anyhow::Result<Summary> {
    let user_code = reading.user_code()?;
    Ok(read_many(
        files,
        jobs.pace(reading, "traces"),
        Resolver::for_user,
        |resolver, path| {
            summarize_file(path, &user_code, resolver, inspect).unwrap_or_else(|UnreadableInput(why)| {
                Summary::of_unreadable(path.display().to_string(), why)
            })
        },
        |parts| Summary::merge_all(parts.map(|(_, part)| part)),
    ))
}

fn summarize_file(
    path: &Path,
    user_code: &UserCodePaths,
    resolver: &mut Resolver,
    inspect: &ReportInspector<'_>,
) -> Result<Summary, UnreadableInput> {
    if let Some(text) = read_summary(path)? {
        let refuse = |why| UnreadableInput(format!("{} {why}", path.display()));
        return Summary::parse(&text).map_err(refuse);
    }
    let (file, ring) = TraceSource::find(path)?;
    let options = AnalysisOptions { user_code: user_code.clone(), ..AnalysisOptions::default() };
    let (analysis, _) = file.with_input(ring, |input| analyse_with_head(input, options))?;
    Ok(Summary::of_trace(summarize_analysis(&analysis, resolver, inspect)))
}

/// Opens a file that begins like a summary. Whatever cannot be opened here is refused as a trace,
/// with its reason.
fn open_summary(path: &Path) -> Option<File> {
    // Opening a pipe would block.
    let is_file = std::fs::metadata(path).is_ok_and(|facts| facts.is_file());
    is_file.then(|| File::open(path).ok()).flatten().filter(begins_like_summary)
}

/// The text of the file, if it begins like a summary.
fn read_summary(path: &Path) -> Result<Option<String>, UnreadableInput> {
    let refuse = |why: String| UnreadableInput(format!("{} {why}", path.display()));
    let Some(file) = open_summary(path) else { return Ok(None) };
    let mut text = String::new();
    match file.take(MAX_SUMMARY_BYTES + 1).read_to_string(&mut text) {
        Ok(length) if length as u64 > MAX_SUMMARY_BYTES => {
            Err(refuse("is larger than 256 MiB, so it is not a summary".to_owned()))
        }
        Ok(_) => Ok(Some(text)),
        Err(error) => Err(refuse(format!("cannot be read: {error}"))),
    }
}

/// True if the file begins like a summary.
pub(in crate::commands) fn is_summary(path: &Path) -> bool {
    open_summary(path).is_some()
}
