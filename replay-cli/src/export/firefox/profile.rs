//! The whole profile: a process per run, a thread per device.

use serde::Serialize;
use serde_json::{Value, json};

use super::counters::{CounterPlace, MemoryCounter, counters_of_device};
use super::markers::{MarkerTable, MarkerTimes, marker_schemas};
use super::rows::RunRows;
use super::tables::{CATEGORIES, SharedData, SharedTables};
use super::thread::{DeviceThread, NativeAllocations, no_samples};
use super::units::milliseconds;
use crate::export::ExportJob;
use crate::export::stacks::{NamedStacks, device_name};
use gpumemtrace_format::source_path::file_name;

/// The version of the format. Viewers upgrade older ones.
const FORMAT_VERSION: u32 = 62;
const SIZES: &str = "Bytes as the allocator rounded them up; frees are negative";

/// A profile that is being built, run by run.
#[derive(Debug, Default)]
pub(super) struct ProfileBuilder {
    tables: SharedTables,
    threads: Vec<DeviceThread>,
    counters: Vec<MemoryCounter>,
    /// Start of the first run in nanoseconds since the epoch; 0 if no run has a start.
    start_unix_ns: u64,
}

impl ProfileBuilder {
    pub(super) fn new(job: &ExportJob) -> Self {
        let starts = job.report.traces.iter().filter_map(|trace| trace.started_unix_ns);
        Self { start_unix_ns: starts.min().unwrap_or_default(), ..Self::default() }
    }

    /// Adds the devices of a run: their allocations and frees, markers and counters.
    pub(super) fn add_run(&mut self, job: &mut ExportJob, index: usize, rows: RunRows) {
        let RunRows { by_device: rows, last_ns } = rows;
        let ExportJob { runs, report, resolver, .. } = job;
        let (run, info) = (&runs[index], &report.traces[index]);
        let offset_ns = info.started_unix_ns.unwrap_or_default().saturating_sub(self.start_unix_ns);
        // After the last event, the course is not known.
        let last_ns = last_ns.unwrap_or(run.window.span_ns.1);
        let window_ns = (run.window.span_ns.0, last_ns.min(run.window.span_ns.1));
        let times = MarkerTimes { offset_ns, window_ns };
        let stacks =
            NamedStacks::new(run, rows.values().flat_map(|rows| rows.stacks.iter().copied()), resolver);
        let pid = info.pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
        // Processes on two hosts may have the same ID.
        let pid = if report.traces.len() > 1 { format!("{index}:{pid}") } else { pid };
        let first_thread = self.threads.len();
        for (device, rows) in rows {
            let mut markers = MarkerTable::default();
            if self.threads.len() == first_thread {
                markers.add_run(&run.history, times, &mut self.tables);
            }
            let ooms = report.oom.iter().flatten();
            for oom in ooms.filter(|oom| oom.trace == index && oom.device == u32::from(device)) {
                markers.add_oom(oom, times, &mut self.tables);
            }
            let native_allocations = NativeAllocations::new(rows, offset_ns, &stacks, &mut self.tables);
            self.threads.push(DeviceThread {
                name: device_name(report, index, device),
                process_name: info.command.as_deref().map_or_else(|| "program".to_owned(), name_command),
                process_type: "default",
                process_startup_time: milliseconds(offset_ns),
                process_shutdown_time: None,
                register_time: milliseconds(offset_ns),
                unregister_time: None,
                paused_ranges: [],
                show_markers_in_timeline: true,
                is_main_thread: self.threads.len() == first_thread,
                pid: pid.clone(),
                tid: self.threads.len(),
                samples: no_samples(),
                markers,
                native_allocations,
            });
            let place = CounterPlace { pid: &pid, thread: first_thread, offset_ns, window_ns };
            let history = run.history.devices.iter().find(|history| history.ordinal == device);
            self.counters.extend(history.into_iter().flat_map(|history| counters_of_device(history, &place)));
        }
    }

    /// The profile. `sampled` says what was left out.
    pub(super) fn finish(self, job: &ExportJob, sampled: Option<&str>) -> FirefoxProfile {
        let categories = CATEGORIES.map(|(name, color)| category(name, color));
        let traces: Vec<&str> = job.report.traces.iter().map(|trace| file_name(&trace.path)).collect();
        let entries = [
            info_entry("Written by", concat!("gpumemtrace ", env!("CARGO_PKG_VERSION"))),
            info_entry("Traces", &traces.join(", ")),
            info_entry("Sizes", SIZES),
            info_entry("Sampling", sampled.unwrap_or("None: all allocations and frees are shown")),
        ];
        let all_threads: Vec<usize> = (0..self.threads.len()).collect();
        FirefoxProfile {
            meta: json!({
                "categories": categories,
                "extra": [{ "label": "GPU memory", "entries": entries }],
                "importedFrom": "gpumemtrace",
                "initialVisibleThreads": all_threads,
                "interval": 1,
                "markerSchema": marker_schemas(),
                "preprocessedProfileVersion": FORMAT_VERSION,
                "processType": 0,
                "product": "gpumemtrace",
                "sourceCodeIsNotOnSearchfox": true,
                "stackwalk": 1,
                "startTime": milliseconds(self.start_unix_ns),
                "symbolicated": true,
                "usesOnlyOneStackType": true,
                // Not read where `preprocessedProfileVersion` is present.
                "version": 0,
            }),
            libs: [],
            counters: self.counters,
            shared: self.tables.finish(),
            threads: self.threads,
        }
    }
}

/// The profile in the names of the format.
#[derive(Serialize)]
pub(super) struct FirefoxProfile {
    meta: Value,
    libs: [u8; 0],
    counters: Vec<MemoryCounter>,
    shared: SharedData,
    threads: Vec<DeviceThread>,
}

/// `python train.py` of `/venv/bin/python3 /work/train.py --lr 1`.
fn name_command(arguments: &[String]) -> String {
    arguments.iter().take(2).map(|argument| file_name(argument)).collect::<Vec<_>>().join(" ")
}

#[inline(never)] // Copies would be large.
fn category(name: &str, color: &str) -> Value {
    json!({ "name": name, "color": color, "subcategories": ["Other"] })
}

/// A row of the viewer's panel about the profile.
#[inline(never)] // Copies would be large.
fn info_entry(label: &str, value: &str) -> Value {
    json!({ "label": label, "format": "string", "value": value })
}
