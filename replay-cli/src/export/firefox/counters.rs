//! Live, reserved and device bytes over time, as counters of a process.

use gpumemtrace_replay::DeviceHistory;
use serde::Serialize;
use serde_json::{Value, json};

use super::units::milliseconds;

/// The series of a device that are shown: label, its index among the series, what it is, colour.
const SERIES: [(&str, usize, &str, &str); 3] = [
    ("live", 1, "Bytes in live blocks", "green"),
    ("reserved", 3, "Bytes reserved by PyTorch's allocator", "blue"),
    ("device", 5, "Bytes allocated from the driver", "orange"),
];

/// A value over time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemoryCounter {
    name: String,
    category: &'static str,
    description: String,
    pid: String,
    main_thread_index: usize,
    samples: CounterSamples,
    display: Value,
}

/// Changes of a value: viewers add them up.
#[derive(Debug, Serialize)]
struct CounterSamples {
    length: usize,
    time: Vec<f64>,
    count: Vec<i64>,
}

/// Where the counters of a process lie in the profile.
pub(super) struct CounterPlace<'a> {
    pub(super) pid: &'a str,
    /// Index of the first thread of the process.
    pub(super) thread: usize,
    /// Start of the run in the profile.
    pub(super) offset_ns: u64,
    /// Begin and end of the window in the run.
    pub(super) window_ns: (u64, u64),
}

/// The counters of a device: the most bytes of each bin of its history. Unknown series are left
/// out.
pub(super) fn counters_of_device(device: &DeviceHistory, place: &CounterPlace<'_>) -> Vec<MemoryCounter> {
    let mut counters = Vec::new();
    for (order, (label, index, what, color)) in SERIES.into_iter().enumerate() {
        let samples = CounterSamples::new(&device.series[index], device, place);
        if samples.length == 0 {
            continue;
        }
        let name = format!("GPU {} {label}", device.ordinal);
        counters.push(MemoryCounter {
            description: format!("{what}: the maximum of each interval"),
            category: "Memory",
            pid: place.pid.to_owned(),
            main_thread_index: place.thread,
            samples,
            display: json!({
                "graphType": "line-accumulated", "unit": "bytes", "color": color,
                "markerSchemaLocation": null, "sortWeight": order, "label": name,
            }),
            name,
        });
    }
    counters
}

impl CounterSamples {
    fn new(series: &[u64], device: &DeviceHistory, place: &CounterPlace<'_>) -> Self {
        let (begin, end) = place.window_ns;
        let mut samples = Self { length: 0, time: Vec::new(), count: Vec::new() };
        let mut before = 0i64;
        // The last time, if it was left out because the value was that of the time before.
        let mut skipped_ms = None;
        for (edges, bytes) in device.series_edges_ns.windows(2).zip(series) {
            let first = edges[0];
            if edges[1] <= begin || first > end {
                continue;
            }
            let time_ms = milliseconds(place.offset_ns.saturating_add(first.max(begin)));
            // Viewers draw from the lowest value on, so the first one is 0.
            if samples.length == 0 {
                samples.push(time_ms, 0);
            }
            let now = i64::try_from(*bytes).unwrap_or(i64::MAX);
            if now == before && samples.length > 1 {
                skipped_ms = Some(time_ms);
                continue;
            }
            // Viewers draw a line between samples.
            if let Some(skipped_ms) = skipped_ms.take() {
                samples.push(skipped_ms, 0);
            }
            samples.push(time_ms, now - before);
            before = now;
        }
        if let Some(skipped_ms) = skipped_ms {
            samples.push(skipped_ms, 0);
        }
        samples
    }

    fn push(&mut self, time_ms: f64, change: i64) {
        self.length += 1;
        self.time.push(time_ms);
        self.count.push(change);
    }
}
