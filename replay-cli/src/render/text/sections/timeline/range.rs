//! The part of a run that a chart shows, and the labels of its axis.
//!
//! With steps, the chart begins at the first step and ends with the program: start-up and teardown
//! would press growth into a few columns. The peak and errors are always inside. Without steps it
//! shows the whole recording.

use std::ops::Range;

use gpumemtrace_replay::report::{DeviceEnd, Timeline};

use crate::render::wording::moment::format_step;
use crate::render::wording::recording::describe_end_moment;
use crate::terminal::chart;
use crate::terminal::format::format_duration;

/// Least columns from one label of the axis to the next.
const LABEL_COLUMNS: usize = 9;
/// The same without steps, where labels are times alone.
const TIME_LABEL_COLUMNS: usize = 18;
/// Least columns per step at which columns are equal times.
const COLUMNS_PER_STEP: u64 = 4;
/// A bin of the timeline has at most two points.
const POINTS_PER_GROUP: u64 = 4;

/// The part of a run that a chart covers, in nanoseconds from the start of the recording.
#[derive(Clone, Debug)]
pub(super) struct ChartRange {
    begin_ns: u64,
    end_ns: u64,
    /// Times inside and the number of steps begun at each, in order; empty without steps.
    steps: Vec<(u64, u64)>,
    /// Columns of the chart.
    width: usize,
    /// What the chart shows, for the legend.
    pub(super) note: Option<String>,
}

/// The division of a chart into groups of steps of equal width.
#[derive(Clone, Copy, Debug)]
struct StepGroups {
    first: u64,
    steps: u64,
    /// Number of groups: at most one per column.
    count: u64,
}

impl StepGroups {
    fn columns_of(&self, step: u64, width: usize) -> Range<usize> {
        let scale = |number: u64, to: u64, of: u64| u128::from(number) * u128::from(to) / u128::from(of);
        let group = scale(step.saturating_sub(self.first), self.count, self.steps) as u64;
        let column = |group: u64| scale(group, width as u64, self.count) as usize;
        column(group)..column(group + 1)
    }
}

impl ChartRange {
    /// The range for a timeline with points. `shown_ns` are times that must be inside.
    pub(super) fn choose(
        timeline: &Timeline,
        end: Option<&DeviceEnd>,
        shown_ns: &[u64],
        width: usize,
    ) -> Self {
        let times = || timeline.points.iter().map(|point| point.time_ns);
        let (first_ns, last_ns) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
        let whole = Self { begin_ns: first_ns, end_ns: last_ns, steps: Vec::new(), width, note: None };
        let first_step = timeline.points.iter().find(|point| point.step.is_some_and(|step| step > 0));
        let (Some(first_step), Some(end)) = (first_step, end) else { return whole };
        let begin_ns = shown_ns.iter().fold(first_step.time_ns, |begin, time| begin.min(*time));
        let end_ns = shown_ns.iter().fold(end.time_ns.min(last_ns), |end, time| end.max(*time));
        if begin_ns >= end_ns {
            return whole;
        }
        let from = if begin_ns == first_step.time_ns {
            format_step("step ", first_step.step)
        } else {
            format_duration(begin_ns)
        };
        let to = if end_ns == end.time_ns {
            format!("the end of the program ({})", describe_end_moment(end.moment))
        } else {
            format_duration(end_ns)
        };
        // A point before the first step may have the time of its first event.
        let inside = timeline.points.iter().filter(|point| {
            (begin_ns..=end_ns).contains(&point.time_ns)
                && (point.time_ns > first_step.time_ns || point.step != Some(0))
        });
        let steps = inside.filter_map(|point| Some((point.time_ns, point.step?))).collect();
        Self { begin_ns, end_ns, steps, note: Some(format!("shown: {from} to {to}")), ..whole }
    }

    pub(super) fn contains(&self, time_ns: u64) -> bool {
        (self.begin_ns..=self.end_ns).contains(&time_ns)
    }

    /// The division of the chart by steps. `None` if each step has [`COLUMNS_PER_STEP`] columns:
    /// these show its course. With less, columns of equal time would show some steps at their
    /// peak and others between peaks.
    fn step_groups(&self) -> Option<StepGroups> {
        let (first, last) = (self.steps.first()?.1, self.steps.last()?.1);
        let steps = last - first + 1;
        if steps.saturating_mul(COLUMNS_PER_STEP) <= self.width as u64 {
            return None;
        }
        // A group that is twice as long as a bin has all of one bin, and so its highest point.
        let points = self.steps.len() as u64 / POINTS_PER_GROUP;
        Some(StepGroups { first, steps, count: steps.min(self.width as u64).min(points).max(1) })
    }

    /// The columns of a time; times outside are in the first or the last.
    fn columns_at(&self, time_ns: u64) -> Range<usize> {
        let Some(groups) = self.step_groups() else {
            let column = chart::column_at(time_ns, (self.begin_ns, self.end_ns), self.width);
            return column..column + 1;
        };
        let at = self.steps.partition_point(|(time, _)| *time <= time_ns).saturating_sub(1);
        let step = self.steps.get(at).map_or(groups.first, |(_, step)| *step);
        groups.columns_of(step, self.width)
    }

    /// The first column of a time.
    pub(super) fn column_of(&self, time_ns: u64) -> usize {
        self.columns_at(time_ns).start
    }

    /// The highest value in each column.
    pub(super) fn columns_of(&self, points: &[(u64, u64)]) -> Vec<u64> {
        let inside = points.iter().filter(|(time_ns, _)| self.contains(*time_ns));
        chart::highest_in_columns(inside.map(|(time, value)| (self.columns_at(*time), *value)), self.width)
    }

    /// The lines of labels below the axis: step numbers and their times, or times alone.
    pub(super) fn label_lines(&self) -> Vec<String> {
        let (Some((_, first)), Some((_, last))) = (self.steps.first(), self.steps.last()) else {
            return vec![self.time_labels()];
        };
        let intervals = (self.width / LABEL_COLUMNS).clamp(1, 8) as u64;
        let each = round_up((last - first).div_ceil(intervals));
        let mut ticks = vec![(0, *first, self.begin_ns)];
        let groups = self.step_groups();
        for (time_ns, step) in &self.steps {
            let next = ticks.last().map_or(0, |(_, step, _)| (step / each + 1) * each);
            if *step >= next && step < last {
                // Columns of equal time show when a step began no better than their points do.
                let shown = if groups.is_some() { step / each * each } else { *step };
                let at = groups.map_or_else(
                    || self.column_of(*time_ns),
                    |groups| groups.columns_of(shown, self.width).start,
                );
                ticks.push((at, shown, *time_ns));
            }
        }
        ticks.push((self.width - 1, *last, self.end_ns));
        let labels = |text: &dyn Fn(u64, u64) -> String| {
            let words: Vec<(usize, String)> =
                ticks.iter().map(|(at, step, time_ns)| (*at, text(*step, *time_ns))).collect();
            chart::place_labels(&words, self.width)
        };
        vec![
            labels(&|step, _| format_step("step ", Some(step))),
            labels(&|_, time_ns| format_duration(time_ns)),
        ]
    }

    fn time_labels(&self) -> String {
        let intervals = (self.width / TIME_LABEL_COLUMNS).clamp(1, 8);
        let span = u128::from(self.end_ns.saturating_sub(self.begin_ns));
        let label = |interval: usize| {
            let offset = span * interval as u128 / intervals as u128;
            let time_ns = self.begin_ns.saturating_add(offset as u64);
            (interval * self.width / intervals, format_duration(time_ns))
        };
        chart::place_labels(&(0..=intervals).map(label).collect::<Vec<_>>(), self.width)
    }
}

/// The next number of 1, 2, 5, 10, 20, 50, ...
fn round_up(number: u64) -> u64 {
    let mut power = 1u64;
    while power.saturating_mul(10) < number {
        power = power.saturating_mul(10);
    }
    let candidates = [1, 2, 5, 10].map(|digit| power.saturating_mul(digit));
    candidates.into_iter().find(|candidate| *candidate >= number).unwrap_or(number).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_round_numbers() {
        for (number, round) in [(0, 1), (1, 1), (3, 5), (7, 10), (11, 20), (99, 100), (201, 500)] {
            assert_eq!(round_up(number), round, "{number}");
        }
    }
}
