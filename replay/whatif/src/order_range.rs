//! The same prediction with other orders of the addresses that the driver gives to segments.
//!
//! Up to PyTorch 2.11, and in expandable segments, the address decides between free blocks of equal
//! size. A driver hands out addresses as it likes, so another run, or another machine, may reserve
//! more or less. Each prediction here has its own random order.

use schemars::JsonSchema;
use serde::Serialize;

use crate::device::AddressOrder;
use crate::prediction::{Prediction, PredictionStop};
use crate::scenario::Scenario;

/// The peak of reserved memory over several orders of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ReservedRange {
    /// The lowest peak.
    pub least_bytes: u64,
    /// The highest peak.
    pub most_bytes: u64,
    /// Number of orders that were tried, including that of the row itself.
    pub orders: u32,
    /// Orders with which a request fails that the recorded run was served.
    pub failing_orders: u32,
}

/// Predictions of one scenario that differ in the order of addresses.
#[derive(Debug, Default)]
pub(crate) struct OrderRange {
    predictions: Vec<Prediction>,
}

impl OrderRange {
    /// Begins predictions with this many orders, or with none if no address can decide.
    pub(crate) fn begin(scenario: &Scenario, orders: u32) -> Self {
        let orders = if scenario.may_address_decide() { orders } else { 0 };
        let begun = (0..orders).map(|seed| scenario.begin(AddressOrder::Random { seed }));
        Self { predictions: begun.collect() }
    }

    pub(crate) fn predictions_mut(&mut self) -> impl Iterator<Item = &mut Prediction> {
        self.predictions.iter_mut()
    }

    /// The range of these predictions and of the one of the row; `None` without other orders.
    pub(crate) fn range(&self, of_row: &Prediction) -> Option<ReservedRange> {
        if self.predictions.is_empty() {
            return None;
        }
        let all = || self.predictions.iter().chain([of_row]);
        let peaks = all().map(|prediction| prediction.stat("reserved_bytes.all.peak"));
        let has_failed =
            |prediction: &&Prediction| matches!(prediction.stop, Some(PredictionStop::Failed(_)));
        Some(ReservedRange {
            least_bytes: peaks.clone().min()?,
            most_bytes: peaks.max()?,
            orders: all().count() as u32,
            failing_orders: all().filter(has_failed).count() as u32,
        })
    }
}
