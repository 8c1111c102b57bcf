//! What PyTorch said of its own memory on Metal when it was asked, beside what Metal's calls had handed out at the same moments.
//!
//! Definitions. A *sample* is two numbers of PyTorch's: what tensors hold, and what the driver holds for the process. *Beyond Metal* is the
//! second minus the memory of all recorded calls then: what no recorded call shows, or where it is negative, what calls handed out
//! and the driver does not count. *Kept* is the bytes of buffers and textures in heaps minus the first: in buffers that no tensor uses.
//! Both are known where PyTorch answered and one device had all the memory; it does not say which device it means.
//!
//! Constraint: nothing is known between two samples, and a run may have millions. Consequence: extremes and counts are of all samples,
//! the series keeps [`MOST_POINTS`] of them at most, evenly picked; nothing is drawn through them.

use gpumemtrace_format::event::NOT_REPORTED;
use gpumemtrace_format::{Event, EventKind};

use crate::event_analysis::{EventAnalysis, EventContext};
use crate::state::metal_levels::MetalLevels;
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;

/// Most samples that are listed.
pub(crate) const MOST_POINTS: usize = 512;

/// One sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MpsSample {
    /// When.
    pub time_ns: u64,
    /// Steps begun.
    pub step: u32,
    /// What tensors hold.
    pub tensors: Option<u64>,
    /// What the driver holds for the process.
    pub driver: Option<u64>,
    /// At the same moment; `None` where several devices had memory, or none.
    pub exact: Option<MetalLevels>,
}

impl MpsSample {
    /// What the driver holds more than calls handed out.
    pub(crate) fn beyond_metal(&self) -> Option<i64> {
        Some(difference(self.driver?, self.exact?.bytes))
    }

    /// What buffers in heaps hold more than tensors.
    pub(crate) fn kept(&self) -> Option<i64> {
        Some(difference(self.exact?.buffers, self.tensors?))
    }
}

fn difference(one: u64, other: u64) -> i64 {
    let amount = i64::try_from(one.abs_diff(other)).unwrap_or(i64::MAX);
    if one < other { -amount } else { amount }
}

/// A number over all samples that have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SampleRange<T> {
    /// How many.
    pub samples: u64,
    /// Of all.
    pub least: T,
    /// Of all.
    pub most: T,
    /// Of the last.
    pub last: T,
}

fn widen<T: Ord + Copy>(range: &mut Option<SampleRange<T>>, value: Option<T>) {
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
    /// How many.
    pub samples: u64,
    /// What tensors held.
    pub tensors: Option<SampleRange<u64>>,
    /// What the driver held.
    pub driver: Option<SampleRange<u64>>,
    /// [`MpsSample::beyond_metal`].
    pub beyond_metal: Option<SampleRange<i64>>,
    /// [`MpsSample::kept`].
    pub kept: Option<SampleRange<i64>>,
    points: Vec<MpsSample>,
    /// Two to the power of this are passed over from one point to the next.
    halvings: u32,
    last: Option<MpsSample>,
    /// What tensors held at the last sample of each step.
    at_steps: StepSeries,
    /// The first and the last of the steps up to now that all have a sample.
    unbroken: Option<[u32; 2]>,
}

impl MpsSamples {
    /// PyTorch was asked.
    #[cold]
    pub(crate) fn sample(&mut self, event: &Event, (time_ns, step): (u64, u32), exact: Option<MetalLevels>) {
        let told = |number: u64| (number != NOT_REPORTED).then_some(number);
        let sample =
            MpsSample { time_ns, step, tensors: told(event.size), driver: told(event.aux[0]), exact };
        widen(&mut self.tensors, sample.tensors);
        widen(&mut self.driver, sample.driver);
        widen(&mut self.beyond_metal, sample.beyond_metal());
        widen(&mut self.kept, sample.kept());
        self.note_step(&sample);
        if self.samples.trailing_zeros() >= self.halvings {
            self.points.push(sample);
        }
        self.samples += 1;
        self.last = Some(sample);
        if self.points.len() == MOST_POINTS {
            let mut number = 0;
            self.points.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.halvings += 1;
        }
    }

    /// The last of several in one step is the one of its end.
    fn note_step(&mut self, sample: &MpsSample) {
        let (Some(bytes), step) = (sample.tensors, sample.step) else { return };
        self.at_steps.record(step, BlockTotals { bytes, blocks: 0 });
        self.unbroken = match self.unbroken {
            Some([first, last]) if step <= last.saturating_add(1) => Some([first, step]),
            _ => Some([step, step]),
        };
    }

    /// What tensors held at the ends of these steps, if PyTorch was asked at the end of each of them and of all in between.
    pub(crate) fn at_steps(&self, first: u32, last: u32) -> Option<[u64; 2]> {
        let [from, to] = self.unbroken?;
        let is_whole = (from..=to).contains(&first) && (from..=to).contains(&last);
        is_whole.then(|| [first, last].map(|step| self.at_steps.at(step).bytes))
    }

    /// Samples in their order, all or evenly picked, and the last one.
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
        self.sample(event, (context.time_ns, context.step), context.live.only_metal());
    }

    fn restart(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(tensors: u64, driver: u64) -> Event {
        Event { size: tensors, aux: [driver, 1], ..Event::new(EventKind::TORCH_MEMORY) }
    }

    const EXACT: Option<MetalLevels> = Some(MetalLevels { device: 0, bytes: 100, heaps: 100, buffers: 40 });

    #[test]
    fn nothing_asked_is_nothing_known() {
        let memory = MpsSamples::default();
        assert_eq!((memory.samples, memory.tensors, memory.beyond_metal), (0, None, None));
        assert!(memory.points().is_empty() && memory.at_steps(0, 0).is_none());
    }

    #[test]
    fn differences_have_a_sign_and_need_both_sides() {
        let mut memory = MpsSamples::default();
        memory.sample(&said(30, 110), (1, 1), EXACT);
        memory.sample(&said(50, 90), (2, 2), EXACT);
        memory.sample(&said(NOT_REPORTED, 500), (3, 3), None);
        assert_eq!(memory.beyond_metal, Some(SampleRange { samples: 2, least: -10, most: 10, last: -10 }));
        assert_eq!(memory.kept, Some(SampleRange { samples: 2, least: -10, most: 10, last: -10 }));
        assert_eq!(memory.tensors, Some(SampleRange { samples: 2, least: 30, most: 50, last: 50 }));
        assert_eq!(memory.driver, Some(SampleRange { samples: 3, least: 90, most: 500, last: 500 }));
        assert_eq!(memory.samples, 3);
    }

    #[test]
    fn steps_are_known_only_where_each_was_asked_about() {
        let mut memory = MpsSamples::default();
        for (step, bytes) in [(1, 10), (2, 20), (2, 25), (3, 30)] {
            memory.sample(&said(bytes, 0), (1, step), None);
        }
        assert_eq!(memory.at_steps(1, 3), Some([10, 30]));
        assert_eq!(memory.at_steps(2, 3), Some([25, 30]), "the last of a step is its end");
        assert_eq!(memory.at_steps(1, 4), None, "of that step there is none yet");
        assert_eq!(memory.at_steps(0, 3), None);
        memory.sample(&said(NOT_REPORTED, 0), (1, 4), None);
        memory.sample(&said(50, 0), (1, 5), None);
        assert_eq!(memory.at_steps(1, 5), None, "one is missing in between");
    }

    #[test]
    fn of_many_samples_some_are_listed_and_all_count() {
        let mut memory = MpsSamples::default();
        (0..5000).for_each(|at| memory.sample(&said(at, at), (at, at as u32), None));
        let points = memory.points();
        assert!(points.len() <= MOST_POINTS && memory.samples == 5000);
        assert_eq!((points[0].tensors, points.last().unwrap().tensors), (Some(0), Some(4999)));
        assert_eq!(memory.tensors.unwrap().most, 4999);
    }
}
