//! The same prediction with other orders of the addresses that the driver gives to segments.
//!
//! Up to PyTorch 2.11, and in expandable segments, the address decides between free blocks of equal
//! size. A driver hands out addresses as it likes, so another run, or another machine, may reserve
//! more or less. Each prediction here has its own random order.

use crate::answer::ReservedRange;
use crate::device::AddressOrder;
use crate::prediction::{Prediction, PredictionStop};
use crate::scenario::Scenario;

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
