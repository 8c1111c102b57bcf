//! Samples of PyTorch's own memory counters on Metal, compared with Metal's allocations.
//!
//! Definitions. A *sample* is two counters of PyTorch: the bytes of tensors, and the bytes that the
//! driver holds for the process.
//! * *Beyond Metal*: the driver's bytes minus the bytes of all recorded calls at that time.
//!   Positive: memory that no recorded call shows. Negative: allocated memory that the driver does
//!   not count.
//! * *Kept*: the bytes of buffers and textures in heaps minus the bytes of tensors. PyTorch caches
//!   these buffers.
//!
//! Both need a sample and exactly one device with memory, because PyTorch does not name the device.
//! A run may have millions of samples: ranges and counts cover all of them, and the series keeps at
//! most [`MAX_POINTS`] evenly picked points. `crates/replay/tests/apple.rs` checks the report.

use gpumemtrace_format::event::NOT_REPORTED;
use gpumemtrace_format::{Event, EventKind};

use crate::event_analysis::{EventAnalysis, EventContext, EventTime, MetalLevels};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;

/// Limit of the points in the series.
pub(crate) const MAX_POINTS: usize = 512;

/// One sample of PyTorch's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MpsSample {
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
    /// Bytes of tensors; `None` if PyTorch did not report them.
    pub tensors: Option<u64>,
    /// Bytes that the driver holds for the process; `None` if PyTorch did not report them.
    pub driver: Option<u64>,
    /// Bytes of recorded calls at that time. `None` if several devices had memory, or none.
    pub exact: Option<MetalLevels>,
}

impl MpsSample {
    /// Bytes that the driver holds beyond recorded calls.
    pub(crate) fn beyond_metal(&self) -> Option<i64> {
        Some(signed_difference(self.driver?, self.exact?.bytes))
    }

    /// Bytes of buffers in heaps beyond those of tensors.
    pub(crate) fn kept(&self) -> Option<i64> {
        Some(signed_difference(self.exact?.buffers, self.tensors?))
    }
}

/// The saturating difference `minuend - subtrahend`.
fn signed_difference(minuend: u64, subtrahend: u64) -> i64 {
    let difference = i64::try_from(minuend.abs_diff(subtrahend)).unwrap_or(i64::MAX);
    if minuend < subtrahend { -difference } else { difference }
}

/// The range of a value over the samples that have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SampleRange<T> {
    /// Number of samples that have the value.
    pub samples: u64,
    pub least: T,
    pub most: T,
    /// The value in the last of these samples.
    pub last: T,
}

/// Adds a value to a range.
fn extend_range<T: Ord + Copy>(range: &mut Option<SampleRange<T>>, value: Option<T>) {
    let Some(value) = value else { return };
    *range = Some(match *range {
        None => SampleRange { samples: 1, least: value, most: value, last: value },
        Some(SampleRange { samples, least, most, .. }) => {
            SampleRange { samples: samples + 1, least: least.min(value), most: most.max(value), last: value }
        }
    });
}

/// All samples of a trace.
#[derive(Clone, Debug, Default)]
pub(crate) struct MpsSamples {
    /// Count of all samples.
    pub samples: u64,
    /// Range of the bytes of tensors.
    pub tensors: Option<SampleRange<u64>>,
    /// Range of the bytes that the driver holds for the process.
    pub driver: Option<SampleRange<u64>>,
    /// Range of [`MpsSample::beyond_metal`], in bytes.
    pub beyond_metal: Option<SampleRange<i64>>,
    /// Range of [`MpsSample::kept`], in bytes.
    pub kept: Option<SampleRange<i64>>,
    points: Vec<MpsSample>,
    /// The distance of two points is two to the power of this.
    halvings: u32,
    last: Option<MpsSample>,
    /// Bytes of tensors at the last sample of each step.
    tensors_at_steps: StepSeries,
    /// The latest run of consecutive steps with samples: its first and last step.
    unbroken: Option<[u32; 2]>,
}

impl MpsSamples {
    /// Adds a sample. `exact` has the bytes of recorded calls at that time.
    #[cold]
    pub(crate) fn add(&mut self, event: &Event, time: EventTime, exact: Option<MetalLevels>) {
        let EventTime { time_ns, step } = time;
        let reported = |number: u64| (number != NOT_REPORTED).then_some(number);
        let sample =
            MpsSample { time_ns, step, tensors: reported(event.size), driver: reported(event.aux[0]), exact };
        extend_range(&mut self.tensors, sample.tensors);
        extend_range(&mut self.driver, sample.driver);
        extend_range(&mut self.beyond_metal, sample.beyond_metal());
        extend_range(&mut self.kept, sample.kept());
        self.record_step(&sample);
        if self.samples.trailing_zeros() >= self.halvings {
            self.points.push(sample);
        }
        self.samples += 1;
        self.last = Some(sample);
        if self.points.len() == MAX_POINTS {
            let mut number = 0;
            self.points.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.halvings += 1;
        }
    }

    /// Records the sample for its step. The last sample of a step counts as its end.
    fn record_step(&mut self, sample: &MpsSample) {
        let (Some(bytes), step) = (sample.tensors, sample.step) else { return };
        self.tensors_at_steps.record(step, BlockTotals { bytes, blocks: 0 });
        self.unbroken = match self.unbroken {
            Some([first, last]) if step <= last.saturating_add(1) => Some([first, step]),
            _ => Some([step, step]),
        };
    }

    /// Bytes of tensors at the ends of the steps `first` and `last`. `None` unless each step from
    /// `first` to `last` has a sample.
    pub(crate) fn at_steps(&self, first: u32, last: u32) -> Option<[u64; 2]> {
        let [from, to] = self.unbroken?;
        let is_covered = (from..=to).contains(&first) && (from..=to).contains(&last);
        is_covered.then(|| [first, last].map(|step| self.tensors_at_steps.at(step).bytes))
    }

    /// Evenly picked samples in order, and the last sample.
    pub(crate) fn points(&self) -> Vec<MpsSample> {
        let mut points = self.points.clone();
        points.extend(self.last.filter(|last| points.last() != Some(last)));
        points
    }
}

impl EventAnalysis for MpsSamples {
    fn takes(&self, kind: EventKind) -> bool {
        kind == EventKind::TORCH_MEMORY
    }

    fn on_event(&mut self, event: &Event, context: &EventContext<'_>) {
        self.add(event, context.time(), context.live.only_metal_device());
    }

    fn restart(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_event(tensors: u64, driver: u64) -> Event {
        Event { size: tensors, aux: [driver, 1], ..Event::new(EventKind::TORCH_MEMORY) }
    }

    fn at(time_ns: u64, step: u32) -> EventTime {
        EventTime { time_ns, step }
    }

    const EXACT: Option<MetalLevels> = Some(MetalLevels { device: 0, bytes: 100, heaps: 100, buffers: 40 });

    #[test]
    fn without_samples_nothing_is_known() {
        let memory = MpsSamples::default();
        assert_eq!((memory.samples, memory.tensors, memory.beyond_metal), (0, None, None));
        assert!(memory.points().is_empty() && memory.at_steps(0, 0).is_none());
    }

    #[test]
    fn differences_are_signed_and_need_both_values() {
        let mut memory = MpsSamples::default();
        memory.add(&sample_event(30, 110), at(1, 1), EXACT);
        memory.add(&sample_event(50, 90), at(2, 2), EXACT);
        memory.add(&sample_event(NOT_REPORTED, 500), at(3, 3), None);
        assert_eq!(memory.beyond_metal, Some(SampleRange { samples: 2, least: -10, most: 10, last: -10 }));
        assert_eq!(memory.kept, Some(SampleRange { samples: 2, least: -10, most: 10, last: -10 }));
        assert_eq!(memory.tensors, Some(SampleRange { samples: 2, least: 30, most: 50, last: 50 }));
        assert_eq!(memory.driver, Some(SampleRange { samples: 3, least: 90, most: 500, last: 500 }));
        assert_eq!(memory.samples, 3);
    }

    #[test]
    fn step_values_need_a_sample_in_every_step() {
        let mut memory = MpsSamples::default();
        for (step, bytes) in [(1, 10), (2, 20), (2, 25), (3, 30)] {
            memory.add(&sample_event(bytes, 0), at(1, step), None);
        }
        assert_eq!(memory.at_steps(1, 3), Some([10, 30]));
        assert_eq!(memory.at_steps(2, 3), Some([25, 30]), "the last sample of a step is its end");
        assert_eq!(memory.at_steps(1, 4), None, "step 4 has no sample yet");
        assert_eq!(memory.at_steps(0, 3), None);
        memory.add(&sample_event(NOT_REPORTED, 0), at(1, 4), None);
        memory.add(&sample_event(50, 0), at(1, 5), None);
        assert_eq!(memory.at_steps(1, 5), None, "step 4 has no value");
    }

    #[test]
    fn points_are_limited_and_all_samples_count() {
        let mut memory = MpsSamples::default();
        (0..5000).for_each(|time| memory.add(&sample_event(time, time), at(time, time as u32), None));
        let points = memory.points();
        assert!(points.len() <= MAX_POINTS && memory.samples == 5000);
        assert_eq!((points[0].tensors, points.last().unwrap().tensors), (Some(0), Some(4999)));
        assert_eq!(memory.tensors.unwrap().most, 4999);
    }
}
