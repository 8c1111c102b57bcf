//! The filters of `replay`: devices, ranks, a stream, a start time, call sites.
//!
//! A filter that matches nothing would look like a run without findings. So a device, rank, stream
//! or time that does not exist is an error that lists what exists. A call site may simply have
//! allocated nothing, so an unmatched `--site` only prints a note.

use std::path::PathBuf;

use gpumemtrace_replay::report::Filters as ReportFilters;
use gpumemtrace_replay::{Analysis, AnalysisOptions, Report, SiteFilter, StreamId, TimeSpec, keep_sites};

use crate::exit::UsageError;
use crate::terminal::format::{format_count, format_duration};
use crate::terminal::stderr::print_message;
use crate::trace::open::TraceSource;

/// The heading of these options in the help.
const FILTERS: &str = "Filters";
/// Most marks that an error lists.
const MOST_MARKS: usize = 10;

#[derive(clap::Args)]
pub(crate) struct FilterArgs {
    /// Show only call sites that match, or are called from a match, and sum up the others
    ///
    /// PATTERN is FILE, FILE:LINE, FILE:FUNCTION, a function or a library, with * and ?, or the id
    /// of a site in JSON.
    #[arg(long, help_heading = FILTERS, value_name = "PATTERN")]
    site: Option<String>,
    /// Analyse only what follows WHEN: 12.5s, 3min, step:40 or mark:NAME
    ///
    /// Blocks that are live at WHEN still count, for example at the peak.
    #[arg(long, help_heading = FILTERS, value_name = "WHEN", value_parser = parse_since)]
    since: Option<TimeSpec>,
    /// Show only these GPUs (repeatable, or comma-separated)
    #[arg(long, help_heading = FILTERS, value_name = "N", value_delimiter = ',')]
    gpu: Vec<u32>,
    /// Show only the traces of these ranks (repeatable, or comma-separated)
    #[arg(long, help_heading = FILTERS, value_name = "N", value_delimiter = ',')]
    rank: Vec<u64>,
    /// Show only what PyTorch allocates on this stream: "default", or its number in reports
    #[arg(long, help_heading = FILTERS, value_name = "S")]
    stream: Option<StreamId>,
}

impl FilterArgs {
    /// Passes on the filters that apply while events are read.
    pub(crate) fn configure(&self, asked: &mut AnalysisOptions) {
        asked.since.clone_from(&self.since);
        asked.stream = self.stream;
    }

    /// False if the first blocks of the trace name another rank than `--rank`.
    pub(crate) fn accepts(&self, file: &TraceSource) -> bool {
        if self.rank.is_empty() {
            return true;
        }
        // A trace without a rank at its start is checked again after it has been read.
        let rank = file.read_first_meta().ok().and_then(|meta| meta.number("rank"));
        rank.is_none_or(|rank| self.rank.contains(&rank))
    }

    /// The number of traces that [`Self::accepts`]. Unreadable ones count.
    pub(crate) fn count_accepted(&self, files: &[PathBuf]) -> usize {
        let is_excluded =
            |path: &PathBuf| TraceSource::find(path).is_ok_and(|(file, _)| !self.accepts(&file));
        let excluded =
            if self.rank.is_empty() { 0 } else { files.iter().filter(|it| is_excluded(it)).count() };
        files.len() - excluded
    }

    /// Removes what the filters exclude. `skipped` are traces of other ranks, which were not read.
    pub(crate) fn apply(
        &self,
        analyses: &mut Vec<Analysis>,
        skipped: &[TraceSource],
    ) -> Result<(), UsageError> {
        self.apply_ranks(analyses, skipped)?;
        Self::check_since(analyses)?;
        self.check_stream(analyses)?;
        self.apply_devices(analyses)
    }

    fn apply_ranks(&self, analyses: &mut Vec<Analysis>, skipped: &[TraceSource]) -> Result<(), UsageError> {
        if self.rank.is_empty() {
            return Ok(());
        }
        let rank = |analysis: &Analysis| analysis.meta.number("rank");
        let unnamed: Vec<String> =
            analyses.iter().filter(|one| rank(one).is_none()).map(|one| one.path.clone()).collect();
        let mut there: Vec<u64> = analyses.iter().filter_map(rank).collect();
        there.extend(skipped.iter().filter_map(|file| file.read_first_meta().ok()?.number("rank")));
        there.sort_unstable();
        there.dedup();
        let without_rank = if unnamed.is_empty() {
            String::new()
        } else {
            format!("; without a rank: {}", unnamed.join(", "))
        };
        if let Some(missing) = self.rank.iter().find(|rank| !there.contains(rank)) {
            let known = list_names(&there, "no trace has a rank", "there are ranks");
            return Err(UsageError(format!("no trace is of rank {missing}: {known}{without_rank}")));
        }
        analyses.retain(|one| rank(one).is_some_and(|rank| self.rank.contains(&rank)));
        if !unnamed.is_empty() {
            print_message(format_args!(
                "gpumemtrace: skipped, because the trace has no rank: {}",
                unnamed.join(", ")
            ));
        }
        Ok(())
    }

    fn check_since(analyses: &[Analysis]) -> Result<(), UsageError> {
        for analysis in analyses {
            let Some(since) = &analysis.since else { continue };
            let path = &analysis.path;
            if matches!(since.spec, TimeSpec::Step(_)) && analysis.step_source().is_none() {
                return Err(UsageError(format!(
                    "{path}: cannot find {}, because no steps were detected",
                    since.spec
                )));
            }
            if since.reached.is_none() {
                let span = format_duration(analysis.end_ns.saturating_sub(analysis.start_ns));
                let steps = analysis
                    .step_source()
                    .map(|_| format!(" and {}", format_count(u64::from(analysis.steps), "step")));
                let what = match since.spec {
                    TimeSpec::Elapsed { .. } => format!("no event follows {}", since.spec),
                    _ => format!("{} was not reached", since.spec),
                };
                return Err(UsageError(format!(
                    "{path}: {what}; the trace covers {span}{}{}",
                    steps.unwrap_or_default(),
                    list_known_marks(&since.spec, std::slice::from_ref(analysis))
                )));
            }
        }
        Ok(())
    }

    fn check_stream(&self, analyses: &[Analysis]) -> Result<(), UsageError> {
        let Some(stream) = self.stream else { return Ok(()) };
        let known = || analyses.iter().filter_map(|one| one.stream.as_ref());
        if let Some(analysis) =
            analyses.iter().find(|one| one.stream.as_ref().is_none_or(|s| s.streams.is_empty()))
        {
            return Err(UsageError(format!(
                "{}: streams are unknown, because PyTorch's trace tracker was not attached ({})",
                analysis.path,
                analysis.tracker.map_or("PyTorch not found", gpumemtrace_format::TrackerState::name)
            )));
        }
        if !known().any(|facts| facts.streams.contains(&stream)) {
            let mut there: Vec<StreamId> = known().flat_map(|facts| facts.streams.iter().copied()).collect();
            there.sort_unstable();
            there.dedup();
            let there = list_names(&there, "there is none", "there are");
            return Err(UsageError(format!("no block was allocated on stream {stream}: {there}")));
        }
        Ok(())
    }

    fn apply_devices(&self, analyses: &mut [Analysis]) -> Result<(), UsageError> {
        if self.gpu.is_empty() {
            return Ok(());
        }
        let mut there: Vec<u32> =
            analyses.iter().flat_map(Analysis::device_ordinals).map(u32::from).collect();
        there.sort_unstable();
        there.dedup();
        if let Some(missing) = self.gpu.iter().find(|device| !there.contains(device)) {
            let known = list_names(&there, "there is none", "there are");
            return Err(UsageError(format!("GPU {missing} is not in the trace: {known}")));
        }
        let wanted: Vec<u8> = self.gpu.iter().filter_map(|device| u8::try_from(*device).ok()).collect();
        for analysis in analyses {
            analysis.keep_devices(&wanted);
        }
        Ok(())
    }

    /// Removes the rows of call sites that `--site` excludes. All sites must have names by now.
    pub(crate) fn apply_lines(&self, report: &mut Report) {
        let Some(site) = &self.site else { return };
        if !keep_sites(report, &SiteFilter::from(site.as_str())) {
            print_message(format_args!(
                "gpumemtrace: no call site of this report matches --site {site:?}; all rows are summed up"
            ));
        }
    }

    /// True if `--site` is given.
    pub(crate) fn has_lines(&self) -> bool {
        self.site.is_some()
    }

    /// The filters as they appear in the report; `None` without any.
    pub(crate) fn describe(&self, top: Option<usize>) -> Option<ReportFilters> {
        let filters = ReportFilters {
            top: top.map(|top| top as u64),
            site: self.site.clone(),
            since: self.since.as_ref().map(TimeSpec::to_string),
            devices: self.gpu.clone(),
            ranks: self.rank.clone(),
            stream: self.stream.map(|stream| stream.0),
        };
        (filters != ReportFilters::default()).then_some(filters)
    }

    /// True with `--rank`: the report then does not list the other ranks as missing.
    pub(crate) fn has_ranks(&self) -> bool {
        !self.rank.is_empty()
    }
}

/// Parses the moment of `--since`, which must be known while events are read.
fn parse_since(text: &str) -> Result<TimeSpec, String> {
    match text.parse()? {
        TimeSpec::Peak | TimeSpec::End => {
            Err(format!("{text} is for --at: use a time such as 12.5s, step:40 or mark:NAME"))
        }
        when => Ok(when),
    }
}

/// The names of the program's marks, as the end of an error about a mark that does not exist.
/// Empty for other moments.
pub(super) fn list_known_marks(asked: &TimeSpec, analyses: &[Analysis]) -> String {
    if !matches!(asked, TimeSpec::Mark(_)) {
        return String::new();
    }
    let mut names: Vec<String> = Vec::new();
    for name in analyses.iter().flat_map(Analysis::mark_names) {
        if names.len() < MOST_MARKS && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    format!("; {}", list_names(&names, "the program set no marks", "the program set the marks"))
}

/// `there are 0, 1`, or `nothing` for an empty list.
fn list_names(all: &[impl ToString], nothing: &str, some: &str) -> String {
    let names: Vec<String> = all.iter().map(ToString::to_string).collect();
    if names.is_empty() { nothing.to_owned() } else { format!("{some} {}", names.join(", ")) }
}
