//! What of the traces a report is wanted of: devices, ranks, a stream, a part of the run, some lines.
//!
//! Constraint: a filter that matches nothing looks like a run without findings. Consequence: what does not exist (a device, a rank, a
//! stream, a moment) is refused in one sentence that says what there is; of lines, which may just have done nothing, it is said.

use gpumemtrace_format::Meta;
use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_replay::report::Filters as ReportFilters;
use gpumemtrace_replay::selection::{Lines, keep_lines};
use gpumemtrace_replay::{Analysis, Asked, Report, StreamId, When};

use crate::exit::UsageError;
use crate::terminal::format::{format_count, format_duration};
use crate::trace::open::TraceSource;

/// Most marks that are named to who asked for another.
const MOST_MARKS: usize = 10;

/// Options for that.
#[derive(clap::Args)]
pub(crate) struct FilterArgs {
    /// Only findings and rows of these lines: FILE, FILE:LINE, FILE:FUNCTION, a function, a library, with * and ? (also where it is
    /// a caller of the line that is shown), or the id of a site as JSON has it; other rows are summed up
    #[arg(long, value_name = "PATTERN")]
    site: Option<String>,
    /// Only what comes from then on: a time from the start, such as 12.5s or 3min, step:40, or mark:NAME. What was held before counts at the
    /// peak
    #[arg(long, value_name = "WHEN")]
    since: Option<When>,
    /// Only these devices
    #[arg(long, value_name = "N", value_delimiter = ',')]
    device: Vec<u32>,
    /// Only the traces of these ranks
    #[arg(long, value_name = "N", value_delimiter = ',')]
    rank: Vec<u64>,
    /// Only what PyTorch allocates on this stream: "default", or its number as reports show it
    #[arg(long, value_name = "S")]
    stream: Option<StreamId>,
}

impl FilterArgs {
    /// What the reading must know of it.
    pub(crate) fn configure(&self, asked: &mut Asked) {
        asked.since.clone_from(&self.since);
        asked.stream = self.stream;
    }

    /// False for a trace that says it is of another rank.
    pub(crate) fn accepts(&self, file: &TraceSource) -> bool {
        if self.rank.is_empty() {
            return true;
        }
        // Whoever does not say so at its beginning is asked again when it has been read.
        let rank = read_first_meta(file).and_then(|meta| meta.number("rank"));
        rank.is_none_or(|rank| self.rank.contains(&rank))
    }

    /// Leaves of the traces what is wanted. `skipped` were not read, because they are of other ranks.
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
        there.extend(skipped.iter().filter_map(|file| read_first_meta(file)?.number("rank")));
        there.sort_unstable();
        there.dedup();
        let none =
            if unnamed.is_empty() { String::new() } else { format!("; of no rank: {}", unnamed.join(", ")) };
        if let Some(missing) = self.rank.iter().find(|rank| !there.contains(rank)) {
            let told = list_names(&there, "there is no trace that says its rank", "there are ranks");
            return Err(UsageError(format!("no trace is of rank {missing}: {told}{none}")));
        }
        analyses.retain(|one| rank(one).is_some_and(|rank| self.rank.contains(&rank)));
        if !unnamed.is_empty() {
            crate::terminal::status_line::erase();
            eprintln!("gpumemtrace: left out, as it does not say its rank: {}", unnamed.join(", "));
        }
        Ok(())
    }

    fn check_since(analyses: &[Analysis]) -> Result<(), UsageError> {
        for analysis in analyses {
            let Some(since) = &analysis.since else { continue };
            let path = &analysis.path;
            if matches!(since.asked, When::Step(_)) && analysis.rule.source().is_none() {
                return Err(UsageError(format!(
                    "{path}: no steps were recognised, so there is no {}",
                    since.asked
                )));
            }
            if since.come.is_none() {
                let span = format_duration(analysis.end_ns.saturating_sub(analysis.start_ns));
                let steps = analysis
                    .rule
                    .source()
                    .map(|_| format!(" and {}", format_count(u64::from(analysis.steps), "step")));
                return Err(UsageError(format!(
                    "{path}: {} never came; the run has {span}{} of events{}",
                    since.asked,
                    steps.unwrap_or_default(),
                    list_known_marks(&since.asked, std::slice::from_ref(analysis))
                )));
            }
        }
        Ok(())
    }

    fn check_stream(&self, analyses: &[Analysis]) -> Result<(), UsageError> {
        let Some(stream) = self.stream else { return Ok(()) };
        let told = || analyses.iter().filter_map(|one| one.stream.as_ref());
        if let Some(analysis) =
            analyses.iter().find(|one| one.stream.as_ref().is_none_or(|s| s.told.is_empty()))
        {
            return Err(UsageError(format!(
                "{}: no block's stream is known, because PyTorch's own tracker was not there ({})",
                analysis.path,
                analysis.tracker.map_or("no PyTorch was met", gpumemtrace_format::TrackerState::name)
            )));
        }
        if !told().any(|facts| facts.told.contains(&stream)) {
            let mut there: Vec<StreamId> = told().flat_map(|facts| facts.told.iter().copied()).collect();
            there.sort_unstable();
            there.dedup();
            let there = list_names(&there, "there is none", "there are");
            return Err(UsageError(format!("no block was allocated on stream {stream}: {there}")));
        }
        Ok(())
    }

    fn apply_devices(&self, analyses: &mut [Analysis]) -> Result<(), UsageError> {
        if self.device.is_empty() {
            return Ok(());
        }
        let mut there: Vec<u32> = analyses
            .iter()
            .flat_map(|one| one.devices.iter())
            .filter(|(ordinal, _)| *ordinal != gpumemtrace_format::NO_DEVICE)
            .map(|(ordinal, _)| u32::from(*ordinal))
            .collect();
        there.sort_unstable();
        there.dedup();
        if let Some(missing) = self.device.iter().find(|device| !there.contains(device)) {
            let told = list_names(&there, "no device is", "these are");
            return Err(UsageError(format!("device {missing} is not in the trace: {told}")));
        }
        let wanted: Vec<u8> = self.device.iter().filter_map(|device| u8::try_from(*device).ok()).collect();
        for analysis in analyses {
            analysis.keep_devices(&wanted);
        }
        Ok(())
    }

    /// Leaves of a report, whose sites have names, the rows of the lines that are wanted.
    pub(crate) fn apply_lines(&self, report: &mut Report) {
        let Some(site) = &self.site else { return };
        if !keep_lines(report, &Lines::new(site)) {
            crate::terminal::status_line::erase();
            eprintln!(
                "gpumemtrace: no line of this report fits --site {site:?}, so all rows are summed up as others"
            );
        }
    }

    /// True where only some lines are wanted.
    pub(crate) fn has_lines(&self) -> bool {
        self.site.is_some()
    }

    /// As the report says it; `None` where all is wanted.
    pub(crate) fn describe(&self, top: Option<usize>) -> Option<ReportFilters> {
        let told = ReportFilters {
            top: top.map(|top| top as u64),
            site: self.site.clone(),
            since: self.since.as_ref().map(When::to_string),
            devices: self.device.clone(),
            ranks: self.rank.clone(),
            stream: self.stream.map(|stream| stream.0),
        };
        (told != ReportFilters::default()).then_some(told)
    }

    /// True where not all ranks are wanted: that others are missing is then no news.
    pub(crate) fn has_ranks(&self) -> bool {
        !self.rank.is_empty()
    }
}

/// What a trace says of itself before its first event.
fn read_first_meta(file: &TraceSource) -> Option<Meta> {
    let mut meta = Meta::default();
    for item in TraceReader::new(file.open().ok()?).ok()? {
        match item {
            Item::Meta(more) => meta.merge(more),
            Item::Events(_) | Item::End(_) => break,
            _ => {}
        }
        if meta.number("rank").is_some() {
            break;
        }
    }
    Some(meta)
}

/// What marks there are, for whom asked for one that there is not.
pub(super) fn list_known_marks(asked: &When, analyses: &[Analysis]) -> String {
    if !matches!(asked, When::Mark(_)) {
        return String::new();
    }
    let mut names: Vec<String> = Vec::new();
    for mark in analyses.iter().flat_map(|analysis| &analysis.marks.first) {
        if names.len() < MOST_MARKS && !names.contains(&mark.name) {
            names.push(mark.name.clone());
        }
    }
    format!("; {}", list_names(&names, "the program made no marks", "the program made the marks"))
}

/// `there are 0 and 1`; the first words where there is nothing.
fn list_names(all: &[impl ToString], nothing: &str, some: &str) -> String {
    let names: Vec<String> = all.iter().map(ToString::to_string).collect();
    if names.is_empty() { nothing.to_owned() } else { format!("{some} {}", names.join(", ")) }
}
