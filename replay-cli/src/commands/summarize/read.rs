//! Reads traces on all cores. Only the summary of a trace is kept.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use gpumemtrace_fleet::Summary;
use gpumemtrace_replay::callsite::UserCodePaths;
use gpumemtrace_replay::{AnalysisOptions, analyse_with_head};

use crate::commands::args::jobs::JobsArgs;
use crate::commands::args::trace::TraceArgs;
use crate::exit::UnreadableInput;
use crate::symbolize::Resolver;
use crate::trace::many::read_many;
use crate::trace::open::TraceSource;
use crate::trace::summary::{ReportInspector, summarize_analysis};

/// The first bytes of a summary, as this command writes it.
const SUMMARY_START: &[u8] = b"{\"schema\":\"gpumemtrace.summary\"";

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
        || Resolver::new(reading.uses_symbol_cache()),
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
