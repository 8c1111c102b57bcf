//! What other settings of PyTorch's allocator would have done at the first out-of-memory error.
//!
//! The model of the allocator is not part of this crate. The crate whatif predicts the error, and
//! the caller adds its verdicts to the analysis before it makes the report. Later errors have no
//! verdicts: the program had reacted to the first one.

use crate::pass::Analysis;
use crate::report::{FirstOom, OomPredictions};

impl Analysis {
    /// The first error, if settings of PyTorch's allocator may be predicted for it: the trace has
    /// every event, and no other allocator serves PyTorch.
    pub(super) fn find_first_oom(&self) -> Option<FirstOom> {
        let first = self.ooms.first()?;
        let is_known = !first.is_of_driver && first.event.detail.is_some();
        if self.other_accelerator().is_some() {
            return None;
        }
        if !is_known || !self.incomplete.is_empty() || self.pluggable().is_some() || self.is_metal() {
            return None;
        }
        let (reserved_bytes, free_bytes) = (first.event.aux[1], first.event.addr);
        let known_bytes = reserved_bytes.saturating_add(free_bytes);
        Some(FirstOom {
            seq: first.event.seq,
            device: first.event.device,
            reserved_bytes,
            free_bytes,
            driver_bytes: first.device_bytes,
            card_bytes: self.capacity(first.event.device).unwrap_or(0).max(known_bytes),
        })
    }

    /// The predictions for the error of this event.
    pub(crate) fn predictions_of_oom(&self, seq: u64) -> &OomPredictions {
        let is_first = self.first_oom.is_some_and(|first| first.seq == seq);
        if is_first { &self.oom_predictions } else { &OomPredictions::Absent }
    }
}
