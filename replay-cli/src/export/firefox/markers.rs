//! Steps, phases, marks and out-of-memory errors as markers of a thread.

use gpumemtrace_replay::RunHistory;
use gpumemtrace_replay::report::Oom;
use serde::Serialize;
use serde_json::{Value, json};

use super::tables::SharedTables;
use super::units::milliseconds;
use crate::render::wording::sites::format_site;

/// The schemas of the markers below, as the profile's `markerSchema`.
pub(super) fn marker_schemas() -> [Value; 4] {
    [
        schema("Step", "Step {marker.data.steps}", &[("steps", "Steps", "string")]),
        schema("Phase", "{marker.data.name}", &[("name", "Name", "string")]),
        schema("Mark", "{marker.data.name}", &[("name", "Name", "string")]),
        schema(
            "OutOfMemory",
            "Out of memory: {marker.data.requested}",
            &[
                ("requested", "Requested", "bytes"),
                ("live", "Live", "bytes"),
                ("reserved", "Reserved by PyTorch", "bytes"),
                ("site", "Call site", "string"),
                ("why", "Why", "string"),
            ],
        ),
    ]
}

/// `fields`: key, label and format.
#[inline(never)] // Copies would be large.
fn schema(name: &str, label: &str, fields: &[(&str, &str, &str)]) -> Value {
    let mut rows = Vec::new();
    for (key, label, format) in fields {
        rows.push(json!({ "key": key, "label": label, "format": format }));
    }
    json!({
        "name": name, "tooltipLabel": label, "tableLabel": label, "chartLabel": label,
        "display": ["timeline-overview", "marker-chart", "marker-table"], "fields": rows,
    })
}

/// The markers of a thread, in columns of equal length. Times are milliseconds since the start of
/// the profile.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MarkerTable {
    length: usize,
    name: Vec<usize>,
    start_time: Vec<f64>,
    end_time: Vec<Option<f64>>,
    phase: Vec<u8>,
    category: Vec<u8>,
    data: Vec<Value>,
}

/// Where markers of a run lie in the profile.
#[derive(Clone, Copy, Debug)]
pub(super) struct MarkerTimes {
    /// Start of the run in the profile.
    pub(super) offset_ns: u64,
    /// Begin and end of the window in the run. Markers outside are left out.
    pub(super) window_ns: (u64, u64),
}

/// When a marker begins and ends.
#[derive(Clone, Copy, Debug)]
enum MarkerSpan {
    Instant(u64),
    Interval(u64, u64),
    /// Its end is unknown.
    Begun(u64),
}

impl MarkerTable {
    /// Adds the steps, phases and marks of a run that lie in the window.
    pub(super) fn add_run(&mut self, history: &RunHistory, times: MarkerTimes, tables: &mut SharedTables) {
        let distance = history.step_distance.max(1);
        let starts = &history.step_starts_ns;
        for (index, start) in starts.iter().enumerate() {
            let first = index as u64 * distance + 1;
            let last = (first + distance - 1).min(u64::from(history.steps).max(first));
            let steps = if last > first { format!("{first} to {last}") } else { first.to_string() };
            let span = match starts.get(index + 1) {
                Some(next) => MarkerSpan::Interval(*start, *next),
                None => MarkerSpan::Begun(*start),
            };
            self.add("Step", span, text_data("Step", "steps", &steps), (times, tables));
        }
        for (name, begin, end) in &history.phase_turns {
            let span = MarkerSpan::Interval(*begin, *end);
            self.add("Phase", span, text_data("Phase", "name", name), (times, tables));
        }
        for (name, time, _) in &history.marks {
            let span = MarkerSpan::Instant(*time);
            self.add("Mark", span, text_data("Mark", "name", name), (times, tables));
        }
    }

    /// Adds an out-of-memory error, unless it lies outside the window.
    pub(super) fn add_oom(&mut self, oom: &Oom, times: MarkerTimes, tables: &mut SharedTables) {
        let data = json!({
            "type": "OutOfMemory",
            "requested": oom.requested_bytes,
            "live": oom.live_bytes,
            "reserved": oom.reserved_bytes,
            "site": format_site(&oom.site),
            "why": oom.why,
        });
        self.add("Out of memory", MarkerSpan::Instant(oom.time_ns), data, (times, tables));
    }

    fn add(&mut self, name: &str, span: MarkerSpan, data: Value, place: (MarkerTimes, &mut SharedTables)) {
        let (MarkerTimes { offset_ns, window_ns: (begin, end) }, tables) = place;
        let (phase, first, last) = match span {
            MarkerSpan::Instant(time) => (0, time, Some(time)),
            MarkerSpan::Interval(first, last) => (1, first, Some(last)),
            MarkerSpan::Begun(first) => (2, first, None),
        };
        if first > end || last.is_some_and(|last| last < begin) {
            return;
        }
        let profile_time = |time: u64| milliseconds(offset_ns.saturating_add(time));
        self.length += 1;
        self.name.push(tables.string(name));
        self.start_time.push(profile_time(first));
        self.end_time.push(last.filter(|_| phase == 1).map(profile_time));
        self.phase.push(phase);
        self.category.push(0);
        self.data.push(data);
    }
}

/// The data of a marker with one text.
#[inline(never)] // Copies would be large.
fn text_data(kind: &str, key: &str, text: &str) -> Value {
    json!({ "type": kind, key: text })
}
