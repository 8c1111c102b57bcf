//! The records of a pass: out-of-memory errors, refused driver calls, and snapshots.
//!
//! A record is a copy of what the [`Accounts`] hold at a moment, so making one needs the
//! [`PresentState`].

use super::accounts::Accounts;
use super::failed_calls::FailedCalls;
use super::oom_events::OomLog;
use super::snapshot_schedule::SnapshotSchedule;
use super::snapshots::SnapshotLog;
use crate::callsite::symbols::StackSymbols;
use crate::event_analysis::EventTime;

/// What is kept of single moments of the run.
pub(super) struct Records {
    pub(super) ooms: OomLog,
    pub(super) failed_calls: FailedCalls,
    pub(super) snapshots: SnapshotLog,
}

/// The state of the run at the present event.
pub(super) struct PresentState<'a> {
    pub(super) accounts: &'a mut Accounts,
    pub(super) symbols: &'a StackSymbols,
    pub(super) now: EventTime,
    /// False if steps are intervals of a run without a sign of steps.
    pub(super) has_steps: bool,
}

impl Records {
    pub(super) fn new(schedule: SnapshotSchedule) -> Self {
        Self {
            ooms: OomLog::default(),
            failed_calls: FailedCalls::default(),
            snapshots: SnapshotLog::new(schedule),
        }
    }

    /// Begins the analysed part of the run: forgets earlier errors. Snapshots stay.
    pub(super) fn restart(&mut self) {
        self.ooms = OomLog::default();
        self.failed_calls.restart();
        self.snapshots.schedule.gaps.restart();
    }
}
