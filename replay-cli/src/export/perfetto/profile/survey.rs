//! The first reading of a profile: its rows, its slices without their names, and its flows.
//!
//! A slice costs 24 bytes, a flow 40. Slices must be known before the first is written, because
//! those that overlap need tracks of their own, and torch.profiler does not sort them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde_json::Value;

use crate::export::perfetto::slices::SliceSpan;
use crate::export::perfetto::tracks::StableIds;

use super::places::Places;
use super::reader::{ProfileEvent, ProfileHead, read_profile};

/// One end of an arrow between slices.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowEnd {
    pub(super) id: u64,
    /// The arrow ends at the slice, else it begins there.
    pub(super) is_target: bool,
}

/// What is known of a profile before its events are written.
#[derive(Debug, Default)]
pub(super) struct ProfileSurvey {
    pub(super) head: ProfileHead,
    pub(super) places: Places,
    /// The slices of each place; an index is the number of a slice in the order of the file.
    pub(super) slices: BTreeMap<usize, Vec<SliceSpan>>,
    /// The ends of flows at slices.
    pub(super) flows: HashMap<usize, Vec<FlowEnd>>,
    /// Numbers of events that are left out, by what they are.
    pub(super) omitted: BTreeMap<String, u64>,
    /// Time of the first event and end of the last one, in nanoseconds since the base.
    pub(super) span_ns: Option<(i64, i64)>,
}

/// Reads a profile to its end. `ids` makes the numbers of flows.
pub(super) fn survey_profile(path: &Path, ids: StableIds) -> anyhow::Result<ProfileSurvey> {
    let mut survey = ProfileSurvey::default();
    let mut slices = SliceCounter::default();
    let head = read_profile(path, &mut |event: ProfileEvent| {
        survey.on_event(&event, &mut slices, ids);
        Ok(())
    })?;
    survey.head = head;
    Ok(survey)
}

/// Numbers slices in the order of the file.
#[derive(Debug, Default)]
pub(super) struct SliceCounter {
    count: usize,
    /// Place, time and number of the last slice.
    last: Option<(usize, i64, usize)>,
}

impl SliceCounter {
    /// The number of the next slice.
    pub(super) fn count(&mut self, place: usize, time_ns: i64) -> usize {
        let number = self.count;
        self.count += 1;
        self.last = Some((place, time_ns, number));
        number
    }
}

impl ProfileSurvey {
    fn on_event(&mut self, event: &ProfileEvent, slices: &mut SliceCounter, ids: StableIds) {
        if event.ph == "M" {
            return self.places.on_metadata(event);
        }
        let Some(time_ns) = event.time_ns() else { return self.omit("events without a time") };
        match (event.ph.as_str(), event.duration_ns()) {
            ("X", Some(duration_ns)) => {
                let place = self.places.place(event);
                let end_ns = time_ns.saturating_add_unsigned(duration_ns);
                let number = slices.count(place, time_ns);
                let span = SliceSpan { begin_ns: time_ns, end_ns, index: number };
                self.slices.entry(place).or_default().push(span);
                self.extend_span(time_ns, end_ns);
            }
            ("s" | "t" | "f", _) => self.on_flow(event, time_ns, slices, ids),
            ("i" | "I" | "R" | "C", _) => {
                self.places.place(event);
                self.extend_span(time_ns, time_ns);
            }
            (phase, _) => {
                let what = format!("events of phase {phase:?}");
                self.omit(&what);
            }
        }
    }

    /// A flow belongs to the slice before it in the file, which begins at the same time.
    fn on_flow(&mut self, event: &ProfileEvent, time_ns: i64, slices: &SliceCounter, ids: StableIds) {
        let place = self.places.place(event);
        let Some((_, _, number)) =
            slices.last.filter(|(at, begin_ns, _)| (*at, *begin_ns) == (place, time_ns))
        else {
            return self.omit("arrows that follow no slice");
        };
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let id = ids.track(&format!("flow {} {} {}", text(&event.cat), text(&event.name), text(&event.id)));
        self.flows.entry(number).or_default().push(FlowEnd { id, is_target: event.ph == "f" });
    }

    /// A time of the profile in nanoseconds since the Unix epoch.
    pub(super) fn unix_ns(&self, time_ns: i64) -> u64 {
        u64::try_from(self.head.base_unix_ns.saturating_add(time_ns)).unwrap_or(0)
    }

    fn omit(&mut self, what: &str) {
        match self.omitted.get_mut(what) {
            Some(count) => *count += 1,
            None => _ = self.omitted.insert(what.to_owned(), 1),
        }
    }

    fn extend_span(&mut self, begin_ns: i64, end_ns: i64) {
        let (first_ns, last_ns) = self.span_ns.unwrap_or((begin_ns, end_ns));
        self.span_ns = Some((first_ns.min(begin_ns), last_ns.max(end_ns)));
    }
}
