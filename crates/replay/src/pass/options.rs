//! Options of an analysis that must be known before the events are read.

use crate::callsite::code_origin::UserCodePaths;
use crate::event_analysis::AnalysisRow;
use crate::pass::stream_filter::StreamId;
use crate::timeline::time_spec::TimeSpec;

/// Options of an analysis. The default analyses the whole run.
#[derive(Clone, Debug, Default)]
pub struct AnalysisOptions {
    /// Additional paths that count as user code.
    pub user_code: UserCodePaths,
    /// Moments for snapshots, besides the peaks and the end.
    pub snapshot_times: Vec<TimeSpec>,
    /// Restricts the analysis to the run after this moment.
    pub since: Option<TimeSpec>,
    /// Restricts the analysis to blocks that PyTorch allocates on this stream.
    pub stream: Option<StreamId>,
    /// Also records the peak of the step before the peak, at three comparisons per event.
    pub step_before_peak: bool,
    /// Also keeps what [`Analysis::take_history`](crate::Analysis::take_history) returns. Ignored
    /// with `since`.
    pub keeps_history: bool,
    /// Also finds out whether the run ends in equal steps ([`Analysis::first_equal_step`]).
    ///
    /// [`Analysis::first_equal_step`]: crate::Analysis::first_equal_step
    pub compares_steps: bool,
    /// Analyses beyond those of every trace.
    pub more_analyses: &'static [AnalysisRow],
}
