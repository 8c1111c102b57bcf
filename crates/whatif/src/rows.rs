//! Makes the rows of an answer from predictions.

use std::cmp::Reverse;

use crate::answer::{FailedRequest, PredictionStatus, WhatIfRow};
use crate::order_range::OrderRange;
use crate::prediction::{Prediction, PredictionStop};
use crate::reliance::Doubt;
use crate::scenario::Scenario;

/// A row, and what the caller must put into words.
#[derive(Clone, Debug)]
pub struct PredictedRow {
    /// The row without `reason`, and without the site of its failure.
    pub row: WhatIfRow,
    /// Why it is not exact; empty if it is.
    pub doubts: Vec<Doubt>,
    /// The stack of its first failure.
    pub failed_stack: Option<u32>,
}

/// Refused rows last, then those that fail, the earliest failure last. Then by peak, by end, and by
/// calls of the driver.
pub(crate) fn rank(row: &WhatIfRow) -> impl Ord + use<> {
    let calls: u64 = row.driver_calls.values().sum();
    let failure = row.first_failure.as_ref().filter(|_| row.ooms > 0);
    (
        row.status == PredictionStatus::Refused,
        row.ooms > 0,
        Reverse(failure.map(|failure| failure.time_ns)),
        row.peak_reserved_bytes,
        row.end_reserved_bytes,
        calls,
    )
}

/// The doubts that a prediction has by itself.
pub(crate) fn doubts_of_prediction(scenario: &Scenario, prediction: &Prediction) -> Vec<Doubt> {
    let settings = scenario.not_modelled();
    let found = [
        (prediction.has_unknown_release, Doubt::UnknownRelease),
        (prediction.was_pool_refused, Doubt::PoolRefused),
        (prediction.stop == Some(PredictionStop::Survived), Doubt::Survived),
        (scenario.has_unknown_limit(), Doubt::LimitUnknown),
        (!settings.is_empty(), Doubt::NotModelled { settings }),
    ];
    found.into_iter().filter(|(is_found, _)| *is_found).map(|(_, doubt)| doubt).collect()
}

/// The row of a prediction. Without one, a doubt must say why.
pub(crate) fn row_of(
    scenario: &Scenario,
    prediction: Option<&Prediction>,
    range: &OrderRange,
    doubts: Vec<Doubt>,
) -> PredictedRow {
    let is_refused = doubts.iter().any(|doubt| doubt.status() == PredictionStatus::Refused);
    let status = match (is_refused, doubts.is_empty()) {
        (true, _) => PredictionStatus::Refused,
        (false, true) => PredictionStatus::Exact,
        (false, false) => PredictionStatus::Indicative,
    };
    let prediction = prediction.filter(|_| !is_refused);
    let stat = |name: &str| prediction.map(|prediction| prediction.stat(name));
    let failure = prediction.and_then(|prediction| prediction.first_failure);
    let calls = prediction.into_iter().flat_map(Prediction::driver_calls);
    let calls: Vec<_> = calls.map(|(name, total)| (name.to_owned(), total)).collect();
    let row = WhatIfRow {
        setting: scenario.setting.clone(),
        torch: Some(scenario.version.to_string()),
        card_bytes: scenario.card_bytes,
        status,
        reason: None,
        peak_reserved_bytes: stat("reserved_bytes.all.peak"),
        peak_reserved_range: prediction.and_then(|prediction| range.range(prediction)),
        peak_unused: prediction.map(|prediction| prediction.unused_at_peak.into()),
        peak_allocated_bytes: stat("allocated_bytes.all.peak"),
        end_reserved_bytes: stat("reserved_bytes.all.current"),
        reserved_curve: prediction.map(Prediction::reserved_curve),
        ooms: prediction.map_or(0, Prediction::failures),
        retries: stat("num_alloc_retries").unwrap_or(0),
        segments_made: prediction.map_or(0, Prediction::segments_made),
        driver_calls: calls.iter().map(|(name, total)| (name.clone(), total.count)).collect(),
        driver_bytes: calls.iter().map(|(name, total)| (name.clone(), total.bytes)).collect(),
        first_failure: failure.map(|failure| FailedRequest {
            what: failure.what,
            request_bytes: failure.request_bytes,
            site: None,
            time_ns: failure.time_ns,
            step: failure.step,
        }),
    };
    PredictedRow {
        row,
        doubts,
        failed_stack: failure.filter(|failure| failure.what.has_site()).map(|failure| failure.stack),
    }
}
