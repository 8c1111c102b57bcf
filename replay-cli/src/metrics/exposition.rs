//! The metrics in the text format of Prometheus (version 0.0.4).
//!
//! Names follow <https://prometheus.io/docs/practices/naming/>. A value that is unknown has no
//! sample. The number of series is limited by the traces and their devices; labels never hold call
//! sites. Series are labelled by what identifies a run. What may change during a run, such as the
//! name of its file, is in an `_info` metric. `docs/commands/serve-metrics.md` lists the families.

use gpumemtrace_replay::report::DeviceGauges;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::families::{DEVICE_FAMILIES, Family, SERVER_FAMILIES, SampleValue, TRACE_FAMILIES};

/// Name and value of a label.
pub(super) type Label = (&'static str, String);

/// The labels that identify a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeriesLabels(pub(super) Vec<Label>);

impl SeriesLabels {
    /// Replaces the label `trace_id`.
    pub(super) fn set_trace_id(&mut self, value: String) {
        if let Some(label) = self.0.iter_mut().find(|(name, _)| *name == "trace_id") {
            label.1 = value;
        }
    }

    /// These labels, then `more`.
    fn with(&self, more: &[Label]) -> Vec<Label> {
        [&self.0, more].concat()
    }
}

/// Devices of all traces together: an answer has up to 17 lines for each, some 10 KiB.
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
    /// Further labels of the info metric.
    pub(super) info: Vec<Label>,
    pub(super) is_running: bool,
    pub(super) events: u64,
    pub(super) lost_events: Option<u64>,
    pub(super) steps: Option<u32>,
    /// Time of the last event, in seconds since 1970.
    pub(super) last_event: Option<f64>,
    /// The exit code of the process as a shell shows it.
    pub(super) exit_code: Option<u8>,
    pub(super) devices: Vec<DeviceSample>,
}

/// The values of one device of a trace.
#[derive(Debug)]
pub(super) struct DeviceSample {
    pub(super) device: u8,
    /// Name of the card.
    pub(super) name: Option<String>,
    /// Memory of the card.
    pub(super) capacity: Option<u64>,
    /// Time of the last out-of-memory error, in seconds since 1970.
    pub(super) last_oom: Option<f64>,
    pub(super) gauges: DeviceGauges,
}

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
        let build = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        encode_info(&mut encoder, ("gpumemtrace_build", "Version of the server."), &[build])?;
        let runs: Vec<_> = self.traces.iter().map(|trace| trace.labels.with(&trace.info)).collect();
        encode_info(&mut encoder, ("gpumemtrace_run", "The run of a trace."), &runs)?;
        let traces: Vec<_> = self.traces.iter().map(|trace| (trace.labels.0.clone(), trace)).collect();
        for family in TRACE_FAMILIES {
            encode_family(&mut encoder, family, &traces)?;
        }
        let (mut devices, mut cards) = (Vec::new(), Vec::new());
        for trace in &self.traces {
            for device in &trace.devices {
                let labels = trace.labels.with(&[("device", device.device.to_string())]);
                if let Some(name) = &device.name {
                    cards.push([&*labels, &[("name", name.clone())]].concat());
                }
                devices.push((labels, device));
            }
        }
        encode_info(&mut encoder, ("gpumemtrace_device", "The card of a device."), &cards)?;
        for family in DEVICE_FAMILIES {
            encode_family(&mut encoder, family, &devices)?;
        }
        Ok(())
    }
}

type LabelledSample<'a, T> = (Vec<Label>, &'a T);

/// Writes series with the value 1, for their labels, unless there are none. The name gets the
/// suffix `_info`.
fn encode_info(
    encoder: &mut DescriptorEncoder,
    (name, help): (&str, &str),
    series: &[Vec<Label>],
) -> Result<(), std::fmt::Error> {
    if series.is_empty() {
        return Ok(());
    }
    let name = format!("{name}_info");
    let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
    for labels in series {
        encode_value(family.encode_family(labels)?, MetricType::Gauge, SampleValue::Integer(1))?;
    }
    Ok(())
}

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
    use gpumemtrace_format::NO_DEVICE;
    use gpumemtrace_replay::report::LevelGauge;

    use crate::metrics::trace_set::MAX_TRACES;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/commands/serve-metrics.md");

    fn sample(device: DeviceSample) -> Samples {
        let labels = SeriesLabels(vec![("trace_id", "a\"b\\c.trace".to_owned()), ("rank", "3".to_owned())]);
        let trace = TraceSample {
            labels,
            info: Vec::new(),
            is_running: true,
            events: 7,
            lost_events: None,
            steps: None,
            last_event: Some(1_700_000_000.25),
            exit_code: None,
            devices: vec![device],
        };
        Samples { traces: vec![trace], ..Samples::default() }
    }

    fn device_sample(device: u8) -> DeviceSample {
        DeviceSample { device, name: None, capacity: None, last_oom: None, gauges: DeviceGauges::default() }
    }

    #[test]
    fn unknown_values_have_no_sample_and_labels_are_escaped() {
        let gauges = DeviceGauges {
            driver: Some(LevelGauge { bytes: 5, recent_max: 6, peak: 9 }),
            ..DeviceGauges::default()
        };
        let text = to_text(sample(DeviceSample { gauges, ..device_sample(2) }));
        let labels = r#"{trace_id="a\"b\\c.trace",rank="3""#;
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
        for absent in [
            "allocated",
            "reserved",
            "capacity",
            "gap",
            "growth",
            "steps",
            "lost",
            "unaccounted",
            "last_oom",
            "exit_code",
            "device_info",
        ] {
            assert!(!text.contains(&format!("gpumemtrace_{absent}")), "{absent} is in\n{text}");
        }
    }

    #[test]
    fn page_has_all_families_and_the_number_of_series() {
        let page = std::fs::read_to_string(PAGE).unwrap();
        let name = |name: &str, kind: MetricType| match kind {
            MetricType::Counter => format!("`{name}_total`"),
            _ => format!("`{name}`"),
        };
        let traces = TRACE_FAMILIES.iter().map(|(text, _, kind, _)| name(text, *kind));
        let devices = DEVICE_FAMILIES.iter().map(|(text, _, kind, _)| name(text, *kind));
        let server = SERVER_FAMILIES.iter().map(|(text, _, kind, _)| name(text, *kind));
        let infos = ["build", "run", "device"].map(|text| format!("`gpumemtrace_{text}_info`"));
        for name in traces.chain(devices).chain(server).chain(infos) {
            assert!(page.contains(&name), "{PAGE} lacks {name}");
        }
        // Each has an info metric in addition.
        let (of_trace, of_device) = (TRACE_FAMILIES.len() + 1, DEVICE_FAMILIES.len() + 1);
        let all = MAX_TRACES * of_trace + MAX_DEVICES * of_device + SERVER_FAMILIES.len() + 1;
        let all = format!("{},{:03}", all / 1000, all % 1000);
        let limits = format!("at most {of_trace} series, and each of its GPUs at most {of_device}");
        let of_process = of_trace + usize::from(NO_DEVICE) * of_device;
        let of_process =
            format!("{} GPUs, so {},{:03} series", NO_DEVICE, of_process / 1000, of_process % 1000);
        for limit in [limits, of_process, format!("at most {all} series")] {
            assert!(page.contains(&limit), "{PAGE} lacks: {limit}");
        }
    }

    #[test]
    fn info_has_what_may_change_and_the_identity_does_not() {
        let device = DeviceSample { name: Some("A GPU".to_owned()), ..device_sample(0) };
        let mut samples = sample(device);
        let trace = &mut samples.traces[0];
        trace.labels = SeriesLabels(vec![("trace_id", "0a".to_owned())]);
        trace.info = vec![("trace", "run.trace".to_owned()), ("torch", "2.9".to_owned())];
        trace.exit_code = Some(137);
        let text = to_text(samples);
        for line in [
            concat!("gpumemtrace_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            r#"gpumemtrace_run_info{trace_id="0a",trace="run.trace",torch="2.9"} 1"#,
            r#"gpumemtrace_device_info{trace_id="0a",device="0",name="A GPU"} 1"#,
            r#"gpumemtrace_exit_code{trace_id="0a"} 137"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn an_answer_has_a_limited_number_of_devices() {
        let long = || SeriesLabels(vec![("trace_id", "n".repeat(255)), ("host", "h".repeat(255))]);
        let trace = |devices: u8| TraceSample {
            labels: long(),
            info: Vec::new(),
            is_running: true,
            events: 7,
            lost_events: None,
            steps: None,
            last_event: None,
            exit_code: None,
            devices: (0..devices).map(device_sample).collect(),
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
        let text = to_text(sample(DeviceSample { capacity: Some(u64::MAX), gauges, ..device_sample(0) }));
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
