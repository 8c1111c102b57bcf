//! The peak and the duration of each step of a run.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use crate::export::ExportRun;
use crate::export::series::{LevelTracker, Levels};

/// Steps kept of each run: the last ones, as many as TraceML's own trend analysis uses.
pub(super) const MAX_STEPS: usize = 10_000;

/// A step that began and ended in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompletedStep {
    /// Its number, from 1.
    pub(super) number: u32,
    /// Time from its begin to that of the next one.
    pub(super) duration_ns: u64,
    /// The maximum of each series. It begins with the levels at the begin of the step, as after
    /// `torch.cuda.reset_peak_memory_stats()`.
    pub(super) peak: Levels,
}

/// Walks the window of a run; returns its last completed steps, with the memory of one device.
pub(super) fn read_steps(run: &mut ExportRun, device: u8) -> anyhow::Result<VecDeque<CompletedStep>> {
    let mut tracker = LevelTracker::default();
    let mut levels = Levels::default();
    let mut steps = VecDeque::new();
    let mut open: Option<(u64, CompletedStep)> = None;
    let mut number = 0;
    run.walk(&mut |walked| {
        if walked.step != number {
            number = walked.step;
            if let Some((begin_ns, step)) = open.take() {
                if steps.len() == MAX_STEPS {
                    steps.pop_front();
                }
                steps.push_back(CompletedStep { duration_ns: walked.time_ns - begin_ns, ..step });
            }
            let step = CompletedStep { number, duration_ns: 0, peak: levels };
            open = walked.is_inside.then_some((walked.time_ns, step));
        }
        tracker.on_event(walked, |changed, now| {
            if changed == device {
                levels = now;
                if let Some((_, step)) = &mut open {
                    step.peak = step.peak.merge(now, u64::max);
                }
            }
        });
        ControlFlow::Continue(())
    })?;
    Ok(steps)
}
