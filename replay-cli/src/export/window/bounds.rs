//! The part of a run that an export holds: `--since`, `--until`, `--around`.

use std::str::FromStr;

use gpumemtrace_replay::{Report, RunHistory, TimeSpec};

use crate::exit::UsageError;

/// Share of the run that `--around` takes on each side where the run has no steps.
const MARGIN: f64 = 0.05;

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct WindowArgs {
    /// Begin at TIME: 12.5s after the start, step:40, mark:NAME or peak
    #[arg(long, value_name = "TIME")]
    since: Option<TimeSpec>,
    /// End at TIME: 12.5s after the start, step:40, mark:NAME, peak or end
    #[arg(long, value_name = "TIME")]
    until: Option<TimeSpec>,
    /// Only the steps around a moment: peak, oom (the first error) or mark:NAME
    ///
    /// The step with the moment, one before and one after. In a run without steps, a tenth of the
    /// run.
    #[arg(long, value_name = "MOMENT", conflicts_with_all = ["since", "until"])]
    around: Option<Surroundings>,
}

/// The moment that `--around` names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Surroundings {
    /// The highest peak among the devices, or a mark.
    Of(TimeSpec),
    /// The first out-of-memory error.
    Oom,
}

impl FromStr for Surroundings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(spec @ (TimeSpec::Peak | TimeSpec::Mark(_))) => Ok(Self::Of(spec)),
            _ if text == "oom" => Ok(Self::Oom),
            _ => Err(format!("{text:?} is not a moment: use peak, oom or mark:NAME")),
        }
    }
}

/// The part of a run to export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportWindow {
    /// The moment at which it begins; `None` for the begin of the run.
    pub since: Option<TimeSpec>,
    /// The moment at which it ends; `None` for the end of the recording.
    pub until: Option<TimeSpec>,
    /// Both moments in nanoseconds since the start of recording.
    pub span_ns: (u64, u64),
}

impl ExportWindow {
    /// The window of a whole run.
    pub(crate) fn whole(duration_ns: u64) -> Self {
        Self { since: None, until: None, span_ns: (0, duration_ns) }
    }

    /// True if it has all events of the run.
    pub fn is_whole(&self) -> bool {
        self.since.is_none() && self.until.is_none()
    }

    /// The window of the options in one run. `report` is the report of all runs, `trace` the index
    /// of this one in it. Fails if the run does not reach a moment.
    pub(crate) fn new(
        args: &WindowArgs,
        history: &RunHistory,
        (report, trace): (&Report, usize),
    ) -> Result<Self, UsageError> {
        let whole = Self::whole(history.duration_ns);
        let name = &report.traces[trace].path;
        let find = |spec: &TimeSpec, option: &str| {
            find_time(spec, history, (report, trace)).ok_or_else(|| {
                UsageError(format!(
                    "{name} does not reach --{option} {spec}; `gpumemtrace replay` shows its length"
                ))
            })
        };
        if let Some(around) = &args.around {
            let at_ns = match around {
                Surroundings::Of(spec) => find(spec, "around")?,
                Surroundings::Oom => {
                    let ooms = report.oom.iter().flatten().filter(|oom| oom.trace == trace);
                    ooms.map(|oom| oom.time_ns).min().ok_or_else(|| {
                        UsageError(format!("{name} has no out-of-memory error; try --around peak"))
                    })?
                }
            };
            return Ok(Self::around(at_ns, history));
        }
        let begin = args.since.as_ref().map_or(Ok(0), |spec| find(spec, "since"))?;
        let end = args.until.as_ref().map_or(Ok(whole.span_ns.1), |spec| find(spec, "until"))?;
        if begin > end {
            return Err(UsageError("--since lies after --until; swap them".to_owned()));
        }
        Ok(Self { since: args.since.clone(), until: args.until.clone(), span_ns: (begin, end) })
    }

    /// The part around a moment, in nanoseconds since the start of recording.
    fn around(at_ns: u64, history: &RunHistory) -> Self {
        let starts = &history.step_starts_ns;
        if starts.is_empty() {
            let margin = (history.duration_ns as f64 * MARGIN) as u64;
            let end = at_ns.saturating_add(margin).min(history.duration_ns);
            let span_ns = (at_ns.saturating_sub(margin), end);
            let at = |time_ns| Some(TimeSpec::Elapsed { time_ns });
            return Self { since: at(span_ns.0), until: at(span_ns.1), span_ns };
        }
        // The number of steps that have begun, so `starts[begun]` is the begin of the next one.
        let begun = starts.partition_point(|start| *start <= at_ns);
        // A time would add the events at the very begin of the step after the part.
        let step = |index: usize| {
            let number = index as u64 * history.step_distance.max(1) + 1;
            u32::try_from(number).map_or(TimeSpec::End, TimeSpec::Step)
        };
        let first = begun.checked_sub(2);
        let next = Some(begun + 1).filter(|index| *index < starts.len());
        let begin = first.map_or(0, |index| starts[index]);
        let end = next.map_or(history.duration_ns, |index| starts[index]);
        Self { since: first.map(step), until: next.map(step), span_ns: (begin, end) }
    }
}

/// The time of a moment in nanoseconds since the start of recording; `None` if the run does not
/// reach it.
fn find_time(spec: &TimeSpec, history: &RunHistory, (report, trace): (&Report, usize)) -> Option<u64> {
    match spec {
        TimeSpec::Elapsed { time_ns } => (*time_ns <= history.duration_ns).then_some(*time_ns),
        TimeSpec::Step(0) => Some(0),
        TimeSpec::Step(step) if *step <= history.steps => {
            let index = u64::from(step - 1) / history.step_distance.max(1);
            history.step_starts_ns.get(index as usize).copied()
        }
        TimeSpec::Step(_) => None,
        TimeSpec::Mark(selector) => find_mark(selector, &history.marks),
        TimeSpec::Peak => {
            let devices = report.devices.iter().filter(|device| device.trace == trace);
            let highest = devices.rev().max_by_key(|device| device.peak.live_bytes)?;
            highest.peak.time_ns
        }
        TimeSpec::End => Some(history.duration_ns),
    }
}

/// The time of the mark `NAME` or `NAME#NUMBER`.
fn find_mark(selector: &str, marks: &[(String, u64, Option<u64>)]) -> Option<u64> {
    let named = |name: &str, number: usize| {
        marks.iter().filter(|(mark, ..)| mark == name).nth(number).map(|(_, time_ns, _)| *time_ns)
    };
    let numbered = || {
        let (name, number) = selector.rsplit_once('#')?;
        named(name, number.parse::<usize>().ok()?.checked_sub(1)?)
    };
    named(selector, 0).or_else(numbered)
}
