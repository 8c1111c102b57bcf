//! Sums over many streams.

use std::collections::BTreeMap;

use super::{ForecastScore, StreamScore};
use crate::streams::plan::{StepsBy, StreamClass};

/// Buckets of the number of leak events.
pub const EVENT_BUCKETS: [&str; 5] = ["2-5", "6-9", "10-19", "20-49", "50+"];
/// Upper ends of the bins of reported confidence.
pub const CONFIDENCE_BINS: [f64; 7] = [0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
/// A rate counts as right within this share.
pub const RATE_TOLERANCE: f64 = 0.05;

/// The bucket of a number of events, as an index into [`EVENT_BUCKETS`].
pub fn event_bucket(events: u64) -> usize {
    match events {
        0..6 => 0,
        6..10 => 1,
        10..20 => 2,
        20..50 => 3,
        _ => 4,
    }
}

/// A count of successes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub good: u64,
    pub of: u64,
}

impl Share {
    pub fn add(&mut self, is_good: bool) {
        self.good += u64::from(is_good);
        self.of += 1;
    }

    /// `None` if nothing was counted.
    pub fn value(self) -> Option<f64> {
        (self.of > 0).then(|| self.good as f64 / self.of as f64)
    }
}

impl std::ops::AddAssign for Share {
    fn add_assign(&mut self, other: Self) {
        self.good += other.good;
        self.of += other.of;
    }
}

/// What happened to a group of leaks.
#[derive(Clone, Debug, Default)]
pub struct LeakCounts {
    pub found: Share,
    /// Not found, but named as growth.
    pub growth: u64,
    /// Not found, and the report says that leaks were assessed.
    pub denied: u64,
    /// Found with a rate: within [`RATE_TOLERANCE`].
    pub rate: Share,
    /// Found with a period: period and innermost line are right.
    pub details: Share,
}

/// What happened to a group of forecasts.
#[derive(Clone, Debug, Default)]
pub struct ForecastCounts {
    /// Leaks that have a forecast.
    pub given: Share,
    pub covered: Share,
    /// Expected steps within a tenth of the true one.
    pub near: Share,
    /// Intervals without a latest step.
    pub open: u64,
    /// Widths over the steps that were left.
    pub widths: Vec<f64>,
}

impl ForecastCounts {
    fn add(&mut self, forecast: &ForecastScore) {
        self.given.add(forecast.interval.is_some());
        if let Some(is_near) = forecast.is_near() {
            self.near.add(is_near);
        }
        if let Some(is_covered) = forecast.is_covered() {
            self.covered.add(is_covered);
            self.open += u64::from(forecast.relative_width().is_none());
            self.widths.extend(forecast.relative_width());
        }
    }
}

/// What is counted over all streams; `docs/accuracy.md` defines it.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub streams: BTreeMap<StreamClass, u64>,
    pub events: u64,
    /// Leaks by the bucket of their number of events.
    pub by_events: [LeakCounts; 5],
    /// Leaks with 6 events or more, and with 20 or more, by property.
    pub by_property: BTreeMap<(&'static str, String), [LeakCounts; 2]>,
    /// Streams whose findings are all at planted lines, of those with findings.
    pub precise: Share,
    /// Findings at planted lines.
    pub true_findings: Share,
    /// Healthy streams without a finding, by the number of steps.
    pub healthy: BTreeMap<&'static str, Share>,
    /// The same, by main part.
    pub healthy_by_part: BTreeMap<&'static str, Share>,
    /// False findings by file.
    pub alarms: BTreeMap<String, u64>,
    /// Leaky streams with findings: the first is at a planted line.
    pub first_line: Share,
    /// True findings by bin of confidence.
    pub confidence: [Share; 7],
    /// Sum of the confidence in each bin.
    pub confidence_sum: [f64; 7],
    /// Ambiguous streams by main part and class.
    pub ambiguous: BTreeMap<&'static str, BTreeMap<String, u64>>,
    /// Forecasts by the percentage at which the trace was cut.
    pub forecasts: BTreeMap<u64, ForecastCounts>,
    /// Forecasts of all cuts by property.
    pub forecasts_by_property: BTreeMap<(&'static str, String), ForecastCounts>,
    /// Leaky streams whose step count is that of the program within one, by the signs of steps. In
    /// a server, an unknown count is right, too.
    pub steps: BTreeMap<StepsBy, Share>,
}

/// Number of steps as a word.
fn length(steps: u64) -> &'static str {
    match steps {
        0..30 => "10 to 29",
        30..100 => "30 to 99",
        100..1000 => "100 to 999",
        _ => "1,000 to 5,000",
    }
}

impl Counts {
    pub fn add(&mut self, score: &StreamScore) {
        let class = score.plan.class;
        *self.streams.entry(class).or_default() += 1;
        self.events += score.events as u64;
        match class {
            StreamClass::Leaky => self.add_leaky(score),
            StreamClass::Healthy => self.add_healthy(score),
            StreamClass::Ambiguous => {
                let classes = self.ambiguous.entry(score.parts[0]).or_default();
                *classes.entry(score.ambiguous_class()).or_default() += 1;
            }
            StreamClass::UntilFull => {
                self.add_forecasts(score);
                return;
            }
        }
        for finding in score.false_findings() {
            *self.alarms.entry(finding.file.clone()).or_default() += 1;
        }
        for (finding, is_true) in score.report.findings.iter().zip(&score.is_true) {
            let bin = CONFIDENCE_BINS.iter().position(|end| finding.confidence <= *end).unwrap_or(6);
            self.confidence[bin].add(*is_true);
            self.confidence_sum[bin] += finding.confidence;
        }
        if class != StreamClass::Ambiguous {
            score.is_true.iter().for_each(|is_true| self.true_findings.add(*is_true));
            if !score.is_true.is_empty() {
                self.precise.add(score.is_true.iter().all(|is_true| *is_true));
            }
        }
    }

    fn add_leaky(&mut self, score: &StreamScore) {
        if let Some(first) = score.is_true.first() {
            self.first_line.add(*first);
        }
        let plan = &score.plan;
        let is_right = match (plan.steps_by, score.report.steps) {
            (StepsBy::Requests, None) => true,
            (_, count) => count.unwrap_or(0).abs_diff(plan.steps) <= 1,
        };
        self.steps.entry(plan.steps_by).or_default().add(is_right);
        for leak in &score.leaks {
            let events = leak.planted.events;
            let add = |counts: &mut LeakCounts| {
                counts.found.add(leak.is_found);
                counts.growth += u64::from(leak.growth_class.is_some());
                counts.denied += u64::from(leak.is_denied);
                if let Some(error) = leak.rate_error {
                    counts.rate.add(error.abs() <= RATE_TOLERANCE);
                }
                if let Some(is_right) = leak.has_right_details {
                    counts.details.add(is_right);
                }
            };
            add(&mut self.by_events[event_bucket(events)]);
            if events < 6 {
                continue;
            }
            let of = &leak.planted.plan;
            let period = match of.period {
                1 => "1",
                2..10 => "2 to 9",
                _ => "10 to 50",
            };
            let sizes = if of.has_varying_sizes { "varying" } else { "fixed" };
            let several = if score.leaks.len() > 1 { "several" } else { "one" };
            let properties = [
                ("place", format!("{:?}", of.place)),
                ("timing", format!("{:?}", of.timing)),
                ("period", period.to_owned()),
                ("sizes", sizes.to_owned()),
                ("steps from", format!("{:?}", plan.steps_by)),
                ("run length", length(plan.steps).to_owned()),
                ("trace end", format!("{:?}", plan.ending)),
                ("leaks in the run", several.to_owned()),
            ];
            for (name, value) in properties {
                let [from_6, from_20] = self.by_property.entry((name, value)).or_default();
                add(from_6);
                if events >= 20 {
                    add(from_20);
                }
            }
        }
    }

    fn add_healthy(&mut self, score: &StreamScore) {
        let is_silent = score.report.findings.is_empty();
        self.healthy.entry(length(score.plan.steps)).or_default().add(is_silent);
        self.healthy_by_part.entry(score.parts[0]).or_default().add(is_silent);
    }

    fn add_forecasts(&mut self, score: &StreamScore) {
        let leak = &score.leaks[0].planted.plan;
        for forecast in &score.forecasts {
            self.forecasts.entry(forecast.percent).or_default().add(forecast);
            let sizes = if leak.has_varying_sizes { "varying" } else { "fixed" };
            let properties = [
                ("place", format!("{:?}", leak.place)),
                ("timing", format!("{:?}", leak.timing)),
                ("sizes", sizes.to_owned()),
            ];
            for property in properties {
                self.forecasts_by_property.entry(property).or_default().add(forecast);
            }
        }
    }

    /// Leaks with at least so many events, by the lower end of a bucket.
    pub fn leaks_from_bucket(&self, bucket: usize) -> LeakCounts {
        let mut sum = LeakCounts::default();
        for counts in &self.by_events[bucket..] {
            sum.found += counts.found;
            sum.growth += counts.growth;
            sum.denied += counts.denied;
            sum.rate += counts.rate;
            sum.details += counts.details;
        }
        sum
    }
}
