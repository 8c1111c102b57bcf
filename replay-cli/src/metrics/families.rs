//! The metric families: names, help, and how a value is taken from a sample.

use gpumemtrace_replay::report::LevelGauge;
use prometheus_client::metrics::MetricType;

use super::exposition::{DeviceSample, Samples, TraceSample};

#[derive(Clone, Copy)]
pub(super) enum SampleValue {
    Integer(u64),
    Real(f64),
}

/// A metric family: its name (a counter gets the suffix `_total`), its help, its type, and how its
/// value is taken from a sample.
pub(super) type Family<T> = (&'static str, &'static str, MetricType, fn(&T) -> Option<SampleValue>);

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

pub(super) const TRACE_FAMILIES: &[Family<TraceSample>] = &[
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
    (
        "gpumemtrace_exit_code",
        "Exit code of the process after its end; 128 plus the number of the signal that killed it.",
        MetricType::Gauge,
        |it| integer(it.exit_code.map(u64::from)),
    ),
];

pub(super) const DEVICE_FAMILIES: &[Family<DeviceSample>] = &[
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
        "gpumemtrace_unaccounted_bytes",
        "Bytes in use beyond gpumemtrace_driver_bytes: contexts, code and rounding, as last measured.",
        MetricType::Gauge,
        |it| integer(it.gauges.unaccounted),
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
    (
        "gpumemtrace_last_oom_timestamp_seconds",
        "Time of the last out-of-memory error of PyTorch, in seconds since 1970.",
        MetricType::Gauge,
        |it| it.last_oom.map(SampleValue::Real),
    ),
];

pub(super) const SERVER_FAMILIES: &[Family<Samples>] = &[
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
