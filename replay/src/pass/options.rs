//! What must be known before the events are read.

use crate::callsite::code_origin::UserCodePaths;
use crate::event_analysis::AnalysisRow;
use crate::pass::stream_filter::StreamId;
use crate::timeline::time_spec::TimeSpec;
/// What must be known before the events are read.
#[derive(Clone, Debug, Default)]
pub struct AnalysisOptions {
    /// Whose code is the user's own.
    pub own: UserCodePaths,
    /// Moments that are wanted besides the peaks and the end.
    pub at: Vec<TimeSpec>,
    /// Only what comes from then on.
    pub since: Option<TimeSpec>,
    /// Only what PyTorch allocates on this stream.
    pub stream: Option<StreamId>,
    /// Also the peak of the step before the peak.
    pub step_before: bool,
    /// Analyses beyond those of every trace.
    pub more_analyses: &'static [AnalysisRow],
}
