//! The part of a run that a chart shows, and the labels of its axis.
//!
//! With steps, the chart begins at the first step and ends with the program: start-up and teardown
//! would press growth into a few columns. The peak and errors are always inside. Without steps it
//! shows the whole recording.

use gpumemtrace_replay::report::{DeviceEnd, Timeline};

use crate::render::text::moment::format_step;
use crate::render::wording::recording::describe_end_moment;
use crate::terminal::chart;
use crate::terminal::format::format_duration;

/// Least columns from one label of the axis to the next.
const LABEL_COLUMNS: usize = 12;
/// The same without steps, where labels are times alone.
const TIME_LABEL_COLUMNS: usize = 18;

/// The time that a chart covers, in nanoseconds from the start of the recording.
#[derive(Clone, Debug)]
pub(super) struct ChartRange {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    /// What is left out, for the legend.
    pub(super) note: Option<String>,
}

impl ChartRange {
    /// The range for a timeline with points. `shown_ns` are times that must be inside.
    pub(super) fn choose(timeline: &Timeline, end: Option<&DeviceEnd>, shown_ns: &[u64]) -> Self {
        let times = || timeline.points.iter().map(|point| point.time_ns);
        let (first_ns, last_ns) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
        let whole = Self { begin_ns: first_ns, end_ns: last_ns, note: None };
        let first_step = timeline.points.iter().find(|point| point.step.is_some_and(|step| step > 0));
        let (Some(first_step), Some(end)) = (first_step, end) else { return whole };
        let begin_ns = shown_ns.iter().fold(first_step.time_ns, |begin, time| begin.min(*time));
        let end_ns = shown_ns.iter().fold(end.time_ns.min(last_ns), |end, time| end.max(*time));
        if begin_ns >= end_ns {
            return whole;
        }
        let from = if begin_ns == first_step.time_ns {
            format!("from{}", format_step(" step ", first_step.step))
        } else {
            format!("from {} on", format_duration(begin_ns))
        };
        let to = match end_ns == end.time_ns {
            true => format!(" to the end of the program, {}", describe_end_moment(end.moment)),
            false => format!(" to {} in", format_duration(end_ns)),
        };
        Self { begin_ns, end_ns, note: Some(from + &to) }
    }

    pub(super) fn contains(&self, time_ns: u64) -> bool {
        (self.begin_ns..=self.end_ns).contains(&time_ns)
    }

    /// The column of a time; times outside are in the first or the last.
    pub(super) fn column_of(&self, time_ns: u64, width: usize) -> usize {
        chart::column_at(time_ns, (self.begin_ns, self.end_ns), width)
    }

    /// The highest value in each column.
    pub(super) fn columns_of(&self, points: &[(u64, u64)], width: usize) -> Vec<u64> {
        let inside: Vec<(u64, u64)> =
            points.iter().copied().filter(|(time, _)| self.contains(*time)).collect();
        chart::bin_into_columns(&inside, (self.begin_ns, self.end_ns), width)
    }

    /// The lines of labels below the axis: step numbers and their times, or times alone.
    pub(super) fn label_lines(&self, timeline: &Timeline, width: usize) -> Vec<String> {
        let inside = || timeline.points.iter().filter(|point| self.contains(point.time_ns));
        let steps: Vec<(u64, u64)> =
            inside().filter_map(|point| Some((point.step?, point.time_ns))).collect();
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
            return vec![self.time_labels(width)];
        };
        let intervals = (width / LABEL_COLUMNS).clamp(1, 8) as u64;
        let each = round_up((last.0 - first.0).div_ceil(intervals));
        let mut ticks = vec![(0, *first)];
        let mut next = (first.0 / each + 1) * each;
        for (step, time_ns) in &steps {
            if *step >= next && *step < last.0 {
                ticks.push((self.column_of(*time_ns, width), (*step, *time_ns)));
                next = (*step / each + 1) * each;
            }
        }
        ticks.push((width - 1, (last.0, self.end_ns)));
        let labels = |text: &dyn Fn(u64, u64) -> String| {
            let words: Vec<(usize, String)> =
                ticks.iter().map(|(at, (step, time_ns))| (*at, text(*step, *time_ns))).collect();
            chart::place_labels(&words, width)
        };
        vec![
            labels(&|step, _| format_step("step ", Some(step))),
            labels(&|_, time_ns| format_duration(time_ns)),
        ]
    }

    fn time_labels(&self, width: usize) -> String {
        let intervals = (width / TIME_LABEL_COLUMNS).clamp(1, 8);
        let span = u128::from(self.end_ns.saturating_sub(self.begin_ns));
        let label = |interval: usize| {
            let offset = span * interval as u128 / intervals as u128;
            let time_ns = self.begin_ns.saturating_add(offset as u64);
            (interval * width / intervals, format_duration(time_ns))
        };
        chart::place_labels(&(0..=intervals).map(label).collect::<Vec<_>>(), width)
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
