//! Ranges of `record_function`, from their begins and ends.

use std::collections::HashMap;

use crate::values::{Annotation, TextId};

/// Most ranges that overlap without nesting.
const MAX_LANES: usize = 64;

/// A range of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AnnotatedRange {
    pub(super) name: TextId,
    pub(super) begin_ns: u64,
    /// `None`: it was open at the snapshot.
    pub(super) end_ns: Option<u64>,
    /// Ranges of one lane nest.
    pub(super) lane: u32,
}

/// Pairs begins with ends, and puts ranges that do not nest on different lanes.
///
/// A snapshot does not say on which thread a range was. An end belongs to the last open begin of
/// its name; an end without a begin is dropped.
pub(super) fn nest_annotations(annotations: &[Annotation]) -> Vec<AnnotatedRange> {
    let mut open: HashMap<TextId, Vec<usize>> = HashMap::new();
    let mut ranges: Vec<AnnotatedRange> = Vec::new();
    for annotation in annotations {
        let time_ns = annotation.time_us.saturating_mul(1000);
        if annotation.is_begin {
            open.entry(annotation.name).or_default().push(ranges.len());
            ranges.push(AnnotatedRange { name: annotation.name, begin_ns: time_ns, end_ns: None, lane: 0 });
        } else if let Some(begun) = open.get_mut(&annotation.name).and_then(Vec::pop) {
            ranges[begun].end_ns = Some(time_ns.max(ranges[begun].begin_ns));
        }
    }
    // Outer ranges first, so that each finds the lane of the range around it.
    ranges.sort_by_key(|range| (range.begin_ns, std::cmp::Reverse(range.end_ns.unwrap_or(u64::MAX))));
    let mut lanes: Vec<Vec<u64>> = Vec::new();
    ranges.retain_mut(|range| {
        let end_ns = range.end_ns.unwrap_or(u64::MAX);
        for (lane, ends) in (0..).zip(&mut lanes) {
            while ends.last().is_some_and(|end| *end <= range.begin_ns) {
                ends.pop();
            }
            if ends.last().is_none_or(|end| *end >= end_ns) {
                ends.push(end_ns);
                range.lane = lane;
                return true;
            }
        }
        if lanes.len() == MAX_LANES {
            return false;
        }
        range.lane = lanes.len() as u32;
        lanes.push(vec![end_ns]);
        true
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_ranges_share_a_lane_and_overlapping_ones_do_not() {
        let at = |name, is_begin, time_us| Annotation { name: TextId(name), is_begin, time_us };
        let ranges = nest_annotations(&[
            at(1, true, 0),
            at(2, true, 10),
            at(9, false, 11),
            at(2, false, 20),
            at(3, true, 30),
            at(1, false, 40),
            at(3, false, 50),
            at(4, true, 60),
        ]);
        let facts: Vec<_> = ranges.iter().map(|range| (range.name.0, range.end_ns, range.lane)).collect();
        assert_eq!(facts, [(1, Some(40_000), 0), (2, Some(20_000), 0), (3, Some(50_000), 1), (4, None, 0)]);
    }
}
