//! What `replay` would find in a trace that still grows.
//!
//! A thread analyses the traces, one at a time, as `replay` does: the finding is that of a report
//! on what is there. It takes at most one part in [`REST_FACTOR`] of a core.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use gpumemtrace_replay::callsite::{NameScope, UserCodePaths};
use gpumemtrace_replay::report::{AssessmentStatus, Leak};
use gpumemtrace_replay::{Analysis, AnalysisOptions, Section, analyse_with_head, report};

use crate::render::PresentedReport;
use crate::render::wording::assessment::{format_growth, label_growth};
use crate::render::wording::leaks::growth::{format_rate, round_duration};
use crate::render::wording::leaks::label_leak;
use crate::render::wording::sites::short_site;
use crate::symbolize::Resolver;
use crate::terminal::format::{format_count, format_number};
use crate::trace::open::TraceSource;

const SECTIONS: &[Section] = &[Section::Leaks, Section::Oom];
/// After an analysis, the thread rests this many times as long.
const REST_FACTOR: u32 = 20;
/// Also the time before the first analysis.
const LEAST_REST: Duration = Duration::from_secs(3);
/// Forecasts beyond this are not shown.
const FAR: Duration = Duration::from_hours(24 * 30);

/// A finding in a running program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LiveFinding {
    /// `Likely leak: +4.00 MiB/step (1 block) at train.py:7 in fit()`.
    pub(super) text: String,
    /// What the finding is about, without amounts.
    pub(super) subject: String,
    /// When the device is full, if the findings go on, and in which step.
    full_at: Option<(Instant, Option<u64>)>,
}

impl LiveFinding {
    /// `out of memory in about 12 min, near step 1,210`; `None` without a forecast.
    pub(super) fn describe_time_left(&self, now: Instant) -> Option<String> {
        let (full_at, step) = self.full_at?;
        let left = round_duration(full_at.saturating_duration_since(now).as_nanos() as u64);
        let step = step.map(|step| format!(", near step {}", format_number(step))).unwrap_or_default();
        Some(format!("out of memory in about {left}{step}"))
    }
}

/// The thread that analyses traces.
pub(super) struct FindingThread {
    asked: Sender<PathBuf>,
    found: Receiver<(PathBuf, Option<LiveFinding>)>,
    is_busy: bool,
    began: Instant,
    next: Instant,
}

impl FindingThread {
    pub(super) fn start(user_code: UserCodePaths) -> std::io::Result<Self> {
        let (asked, questions) = channel::<PathBuf>();
        let (answers, found) = channel();
        std::thread::Builder::new().name("finding".to_owned()).spawn(move || {
            let mut resolver = Resolver::for_user();
            for path in questions {
                let finding = find(&path, &user_code, &mut resolver);
                if answers.send((path, finding)).is_err() {
                    return;
                }
            }
        })?;
        let now = Instant::now();
        Ok(Self { asked, found, is_busy: false, began: now, next: now + LEAST_REST })
    }

    /// True if it is time to analyse a trace.
    pub(super) fn is_due(&self) -> bool {
        !self.is_busy && Instant::now() >= self.next
    }

    /// Analyses this trace next.
    pub(super) fn ask(&mut self, path: &Path) {
        self.is_busy = self.asked.send(path.to_owned()).is_ok();
        self.began = Instant::now();
    }

    /// The result of the last analysis, once.
    pub(super) fn take(&mut self) -> Option<(PathBuf, Option<LiveFinding>)> {
        let found = self.found.try_recv().ok()?;
        self.is_busy = false;
        self.next = Instant::now() + (self.began.elapsed() * REST_FACTOR).max(LEAST_REST);
        Some(found)
    }
}

/// The finding of a trace; `None` if there is none, or if it cannot be read now.
fn find(path: &Path, user_code: &UserCodePaths, resolver: &mut Resolver) -> Option<LiveFinding> {
    let (file, ring) = TraceSource::find(path).ok()?;
    let options = AnalysisOptions { user_code: user_code.clone(), ..AnalysisOptions::default() };
    let (analysis, _) = file.with_input(ring, |input| analyse_with_head(input, options)).ok()?;
    let analyses = [analysis];
    let found = report(&analyses, SECTIONS);
    let scope = NameScope { sections: SECTIONS, max_sites: 1, stacks: false, mixed: false };
    let found = PresentedReport::new(found, &analyses, scope, resolver);
    main_finding(&found, &analyses[0])
}

/// The leak with most bytes, else the first growth of note, else an out-of-memory error.
fn main_finding(found: &PresentedReport, analysis: &Analysis) -> Option<LiveFinding> {
    let full_at = |leak: &Leak| {
        let elapsed_ns = analysis.end_ns.saturating_sub(analysis.start_ns);
        let left = Duration::from_nanos(leak.oom_elapsed_ns?.saturating_sub(elapsed_ns));
        (left < FAR).then(|| (Instant::now() + left, leak.oom_step.map(|forecast| forecast.expected)))
    };
    if let Some(leak) = found.leaks.iter().flatten().next() {
        let (label, site) = (label_leak(leak.kind, leak.grows_by, leak.is_regular), short_site(&leak.site));
        let text = format!("{label}: {} at {site}", format_rate(leak));
        return Some(LiveFinding { text, subject: format!("{label} {site}"), full_at: full_at(leak) });
    }
    // What a run too short to be judged holds is mostly set-up.
    let judged = found.leak_assessment.iter().flatten();
    let judged = judged.filter(|assessment| assessment.status != AssessmentStatus::NotAssessed);
    let growth = judged.flat_map(|assessment| &assessment.growth).find(|growth| growth.is_warning());
    if let Some(growth) = growth {
        let (label, site) = (label_growth(growth.class, growth.grows_by), short_site(&growth.site));
        let amount = match growth.finding.as_deref() {
            Some(finding) => format_rate(finding),
            None => format_growth((growth.memory, growth.device), growth.bytes, None),
        };
        let full_at = growth.finding.as_deref().and_then(full_at);
        return Some(LiveFinding {
            text: format!("{label}: {amount} at {site}"),
            subject: format!("{label} {site}"),
            full_at,
        });
    }
    let oom = found.oom.iter().flatten().next()?;
    let errors = format_count(analysis.oom_count, "out-of-memory error");
    let text = format!("{errors}, first at {}", short_site(&oom.site));
    Some(LiveFinding { subject: "out of memory".to_owned(), text, full_at: None })
}
