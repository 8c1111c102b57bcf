//! The metrics in the text format of Prometheus (version 0.0.4).
//!
//! Names follow <https://prometheus.io/docs/practices/naming/>. A value that is unknown has no
//! sample. The number of series is limited by the traces and their devices; labels never hold call
//! sites. `docs/commands/serve-metrics.md` lists the families.

use gpumemtrace_replay::report::{DeviceGauges, LevelGauge};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Names and values of labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeriesLabels(pub(super) Vec<(&'static str, String)>);

impl SeriesLabels {
    /// Replaces the label `trace`.
    pub(super) fn set_trace(&mut self, value: String) {
        if let Some(label) = self.0.iter_mut().find(|(name, _)| *name == "trace") {
            label.1 = value;
        }
    }
}

/// Devices of all traces together: an answer has up to 14 lines for each, some 10 KiB.
const MAX_DEVICES: usize = 2048;
/// Devices that each trace may have, however many the other traces have. 128 traces are served.
const MIN_DEVICES_OF_TRACE: usize = 16;

/// All values of one scrape.
#[derive(Debug, Default)]
pub(super) struct Samples {
    pub(super) traces: Vec<TraceSample>,
    /// Files that are no traces, or damaged at their start.
    pub(super) unreadable: u64,
    /// Traces above the limit.
    pub(super) skipped: u64,
    /// Devices without metrics, because all traces together have more than [`MAX_DEVICES`].
    pub(super) skipped_devices: u64,
}

/// The values of one trace.
#[derive(Debug)]
pub(super) struct TraceSample {
    pub(super) labels: SeriesLabels,
    pub(super) is_running: bool,
    pub(super) events: u64,
    pub(super) lost_events: Option<u64>,
    pub(super) steps: Option<u32>,
    /// Time of the last event, in seconds since 1970.
    pub(super) last_event: Option<f64>,
    pub(super) devices: Vec<DeviceSample>,
}

/// The values of one device of a trace.
#[derive(Debug)]
pub(super) struct DeviceSample {
    pub(super) device: u8,
    /// Memory of the card.
    pub(super) capacity: Option<u64>,
    pub(super) gauges: DeviceGauges,
}

#[derive(Clone, Copy)]
enum SampleValue {
    Integer(u64),
    Real(f64),
}

/// A metric family: its name (a counter gets the suffix `_total`), its help, its type, and how its
/// value is taken from a sample.
type Family<T> = (&'static str, &'static str, MetricType, fn(&T) -> Option<SampleValue>);

fn integer(value: Option<u64>) -> Option<SampleValue> {
    value.map(SampleValue::Integer)
}

fn level(gauge: Option<LevelGauge>, part: fn(&LevelGauge) -> u64) -> Option<SampleValue> {
    gauge.map(|gauge| SampleValue::Integer(part(&gauge)))
}

/// Reserved minus `used` bytes.
fn unused(device: &DeviceSample, used: Option<u64>) -> Option<SampleValue> {
    integer(device.gauges.reserved.zip(used).map(|(reserved, used)| reserved.bytes.saturating_sub(used)))
}

const TRACE_FAMILIES: &[Family<TraceSample>] = &[
    (
        "gpumemtrace_trace_running",
        "1 while the program runs and is recorded, 0 after its end.",
        MetricType::Gauge,
        |it| integer(Some(it.is_running.into())),
    ),
    ("gpumemtrace_events", "Events read from the trace.", MetricType::Counter, |it| integer(Some(it.events))),
    ("gpumemtrace_lost_events", "Events that are missing from the trace.", MetricType::Counter, |it| {
        integer(it.lost_events)
    }),
    ("gpumemtrace_steps", "Steps of the program that have begun.", MetricType::Counter, |it| {
        integer(it.steps.map(u64::from))
    }),
    (
        "gpumemtrace_last_event_timestamp_seconds",
        "Time of the last event, in seconds since 1970.",
        MetricType::Gauge,
        |it| it.last_event.map(SampleValue::Real),
    ),
];

const DEVICE_FAMILIES: &[Family<DeviceSample>] = &[
    (
        "gpumemtrace_allocated_bytes",
        "Bytes in live blocks of PyTorch's allocator (torch.cuda.memory_allocated).",
        MetricType::Gauge,
        |it| level(it.gauges.allocated, |level| level.bytes),
    ),
    (
        "gpumemtrace_allocated_max_bytes",
        "Maximum of gpumemtrace_allocated_bytes since the previous scrape of any client.",
        MetricType::Gauge,
        |it| level(it.gauges.allocated, |level| level.recent_max),
    ),
    (
        "gpumemtrace_allocated_peak_bytes",
        "Maximum of gpumemtrace_allocated_bytes in the run.",
        MetricType::Gauge,
        |it| level(it.gauges.allocated, |level| level.peak),
    ),
    (
        "gpumemtrace_reserved_bytes",
        "Bytes in segments of PyTorch's allocator (torch.cuda.memory_reserved).",
        MetricType::Gauge,
        |it| level(it.gauges.reserved, |level| level.bytes),
    ),
    (
        "gpumemtrace_reserved_max_bytes",
        "Maximum of gpumemtrace_reserved_bytes since the previous scrape of any client.",
        MetricType::Gauge,
        |it| level(it.gauges.reserved, |level| level.recent_max),
    ),
    (
        "gpumemtrace_reserved_peak_bytes",
        "Maximum of gpumemtrace_reserved_bytes in the run.",
        MetricType::Gauge,
        |it| level(it.gauges.reserved, |level| level.peak),
    ),
    (
        "gpumemtrace_driver_bytes",
        "Device bytes that the process has allocated from the driver, in PyTorch and elsewhere.",
        MetricType::Gauge,
        |it| level(it.gauges.driver, |level| level.bytes),
    ),
    (
        "gpumemtrace_driver_max_bytes",
        "Maximum of gpumemtrace_driver_bytes since the previous scrape of any client.",
        MetricType::Gauge,
        |it| level(it.gauges.driver, |level| level.recent_max),
    ),
    (
        "gpumemtrace_driver_peak_bytes",
        "Maximum of gpumemtrace_driver_bytes in the run.",
        MetricType::Gauge,
        |it| level(it.gauges.driver, |level| level.peak),
    ),
    (
        "gpumemtrace_device_capacity_bytes",
        "Memory of the card, as the driver reports it.",
        MetricType::Gauge,
        |it| integer(it.capacity),
    ),
    (
        "gpumemtrace_gap_bytes",
        "Reserved bytes minus those that live tensors requested; only if all requests are known.",
        MetricType::Gauge,
        |it| unused(it, it.gauges.requested),
    ),
    ("gpumemtrace_unused_reserved_bytes", "Reserved bytes minus allocated bytes.", MetricType::Gauge, |it| {
        unused(it, it.gauges.allocated.map(|allocated| allocated.bytes))
    }),
    (
        "gpumemtrace_growth_per_step_bytes",
        "Growth of the lowest allocated bytes of a step, per step, over the last 20 to 100 steps.",
        MetricType::Gauge,
        |it| it.gauges.growth_per_step.map(SampleValue::Real),
    ),
    ("gpumemtrace_oom_errors", "Out-of-memory errors of PyTorch.", MetricType::Counter, |it| {
        integer(Some(it.gauges.ooms))
    }),
];

const SERVER_FAMILIES: &[Family<Samples>] = &[
    (
        "gpumemtrace_skipped_devices",
        "Devices that have no metrics because there are too many.",
        MetricType::Gauge,
        |it| integer(Some(it.skipped_devices)),
    ),
    (
        "gpumemtrace_unreadable_files",
        "Files that are named like traces and cannot be read as one.",
        MetricType::Gauge,
        |it| integer(Some(it.unreadable)),
    ),
    (
        "gpumemtrace_skipped_traces",
        "Traces that are not followed because there are too many.",
        MetricType::Gauge,
        |it| integer(Some(it.skipped)),
    ),
];

impl Samples {
    /// Leaves out the devices above the limit, and counts them.
    pub(super) fn limit_devices(&mut self) {
        let mut left = MAX_DEVICES;
        let mut traces_left = self.traces.len();
        for trace in &mut self.traces {
            traces_left -= 1;
            let for_others = traces_left * MIN_DEVICES_OF_TRACE;
            let most = left.saturating_sub(for_others).max(MIN_DEVICES_OF_TRACE);
            self.skipped_devices += trace.devices.len().saturating_sub(most) as u64;
            trace.devices.truncate(most);
            left = left.saturating_sub(trace.devices.len());
        }
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        for family in SERVER_FAMILIES {
            encode_family(&mut encoder, family, &[(Vec::new(), self)])?;
        }
        let traces: Vec<_> = self.traces.iter().map(|trace| (trace.labels.0.clone(), trace)).collect();
        for family in TRACE_FAMILIES {
            encode_family(&mut encoder, family, &traces)?;
        }
        let mut devices = Vec::new();
        for trace in &self.traces {
            for device in &trace.devices {
                let mut labels = trace.labels.0.clone();
                labels.push(("device", device.device.to_string()));
                devices.push((labels, device));
            }
        }
        for family in DEVICE_FAMILIES {
            encode_family(&mut encoder, family, &devices)?;
        }
        Ok(())
    }
}

type LabelledSample<'a, T> = (Vec<(&'static str, String)>, &'a T);

/// Writes a family, unless it has no samples.
fn encode_family<T>(
    encoder: &mut DescriptorEncoder,
    (name, help, kind, value): &Family<T>,
    samples: &[LabelledSample<'_, T>],
) -> Result<(), std::fmt::Error> {
    let known: Vec<_> =
        samples.iter().filter_map(|(labels, sample)| Some((labels, value(sample)?))).collect();
    if known.is_empty() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, *kind)?;
    for (labels, value) in known {
        encode_value(family.encode_family(labels)?, *kind, value)?;
    }
    Ok(())
}

fn encode_value(metric: MetricEncoder, kind: MetricType, value: SampleValue) -> Result<(), std::fmt::Error> {
    match (kind, value) {
        (MetricType::Counter, SampleValue::Integer(value)) => ConstCounter::new(value).encode(metric),
        (MetricType::Counter, SampleValue::Real(value)) => ConstCounter::new(value).encode(metric),
        (_, SampleValue::Integer(value)) => ConstGauge::new(value).encode(metric),
        (_, SampleValue::Real(value)) => ConstGauge::new(value).encode(metric),
    }
}

/// The text of a scrape.
pub(super) fn to_text(samples: Samples) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(samples));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(device: DeviceSample) -> Samples {
        let labels = SeriesLabels(vec![("trace", "a\"b\\c.trace".to_owned()), ("rank", "3".to_owned())]);
        let trace = TraceSample {
            labels,
            is_running: true,
            events: 7,
            lost_events: None,
            steps: None,
            last_event: Some(1_700_000_000.25),
            devices: vec![device],
        };
        Samples { traces: vec![trace], ..Samples::default() }
    }

    #[test]
    fn unknown_values_have_no_sample_and_labels_are_escaped() {
        let gauges = DeviceGauges {
            driver: Some(LevelGauge { bytes: 5, recent_max: 6, peak: 9 }),
            ..DeviceGauges::default()
        };
        let text = to_text(sample(DeviceSample { device: 2, capacity: None, gauges }));
        let labels = r#"{trace="a\"b\\c.trace",rank="3""#;
        for line in [
            "gpumemtrace_skipped_traces 0".to_owned(),
            "# TYPE gpumemtrace_events_total counter".to_owned(),
            format!("gpumemtrace_events_total{labels}}} 7"),
            format!("gpumemtrace_last_event_timestamp_seconds{labels}}} 1700000000.25"),
            format!("gpumemtrace_driver_bytes{labels},device=\"2\"}} 5"),
            format!("gpumemtrace_driver_max_bytes{labels},device=\"2\"}} 6"),
            format!("gpumemtrace_driver_peak_bytes{labels},device=\"2\"}} 9"),
            format!("gpumemtrace_oom_errors_total{labels},device=\"2\"}} 0"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        for absent in ["allocated", "reserved", "capacity", "gap", "growth", "steps", "lost"] {
            assert!(!text.contains(&format!("gpumemtrace_{absent}")), "{absent} is in\n{text}");
        }
    }

    #[test]
    fn an_answer_has_a_limited_number_of_devices() {
        let long = || SeriesLabels(vec![("trace", "n".repeat(255)), ("host", "h".repeat(255))]);
        let device = |device| DeviceSample { device, capacity: None, gauges: DeviceGauges::default() };
        let trace = |devices: u8| TraceSample {
            labels: long(),
            is_running: true,
            events: 7,
            lost_events: None,
            steps: None,
            last_event: None,
            devices: (0..devices).map(device).collect(),
        };
        let mut samples = Samples { traces: (0..127).map(|_| trace(255)).collect(), ..Samples::default() };
        samples.traces.push(trace(16));
        samples.limit_devices();
        let devices: Vec<usize> = samples.traces.iter().map(|trace| trace.devices.len()).collect();
        assert_eq!((devices.iter().sum::<usize>(), devices.iter().min()), (MAX_DEVICES, Some(&16)));
        assert_eq!(samples.skipped_devices, (127 * 255 + 16 - MAX_DEVICES) as u64);
        assert!(to_text(samples).len() < 32 << 20);
    }

    #[test]
    fn gap_is_reserved_minus_requested_and_unused_is_reserved_minus_allocated() {
        let level = |bytes| Some(LevelGauge { bytes, recent_max: bytes, peak: bytes });
        let gauges = DeviceGauges {
            allocated: level(70),
            reserved: level(100),
            requested: Some(65),
            growth_per_step: Some(-1.5),
            ..DeviceGauges::default()
        };
        let text = to_text(sample(DeviceSample { device: 0, capacity: Some(u64::MAX), gauges }));
        for (name, value) in [
            ("gap_bytes", "35"),
            ("unused_reserved_bytes", "30"),
            ("growth_per_step_bytes", "-1.5"),
            ("device_capacity_bytes", "18446744073709551615"),
        ] {
            let line = text.lines().find(|line| line.starts_with(&format!("gpumemtrace_{name}{{")));
            assert!(line.is_some_and(|line| line.ends_with(&format!(" {value}"))), "{name}: {line:?}");
        }
    }
}
