//! `torch-snapshot`: a snapshot as `torch.cuda.memory._dump_snapshot()` writes it.
//!
//! It opens in PyTorch's `memory_viz` and in every other reader of snapshots. Its segments are the
//! state at the end of the window, and the entries of its traces lead there. The events are walked
//! once to find that state, and once per device to write its trace, so memory does not grow with
//! the events. `docs/exports/torch-snapshot.md` lists what the file holds.

mod allocator;
mod coverage;
mod driver_ranges;
mod entry;
mod frames;
mod json_values;
mod labels;
mod notes;
mod pickle;
mod segments;
mod settings;
mod value_writer;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};
use std::ops::ControlFlow;

use gpumemtrace_format::NO_DEVICE;
use gpumemtrace_replay::report::{BlockLayer, WalkEnd};

use super::{ExportFormat, ExportJob, ExportRun, Exporter};
use allocator::AllocatorModel;
use entry::{SnapshotAction, SnapshotEntry};
use frames::FrameTable;
use json_values::JsonWriter;
use labels::MomentLabels;
use notes::notes_of;
use pickle::PickleWriter;
use segments::write_pool;
use settings::write_settings;
use value_writer::ValueWriter;

/// Version of the `gpumemtrace` part of the file.
const FORMAT_VERSION: u64 = 1;

/// The format `torch-snapshot`, for every reader of PyTorch's own snapshots.
#[derive(clap::Args)]
pub(crate) struct PickledSnapshot {
    #[command(flatten)]
    options: SnapshotOptions,
}

/// The format `torch-snapshot-json`, for programs without an unpickler. Each entry repeats its
/// frames.
#[derive(clap::Args)]
pub(crate) struct JsonSnapshot {
    #[command(flatten)]
    options: SnapshotOptions,
}

#[derive(clap::Args)]
struct SnapshotOptions {
    /// Keep the last COUNT events of the window
    ///
    /// PyTorch's viewer becomes slow above the default.
    #[arg(long, value_name = "COUNT", default_value_t = 250_000)]
    max_events: u64,
}

impl ExportFormat for PickledSnapshot {
    const NAME: &'static str = "torch-snapshot";
    const HELP: &'static str = "PyTorch's memory snapshot, for memory_viz";
    const EXAMPLE: &'static str = "torch-snapshot run.trace --around oom";
    const SUFFIX: &'static str = ".snapshot.pickle";
}

impl ExportFormat for JsonSnapshot {
    const NAME: &'static str = "torch-snapshot-json";
    const HELP: &'static str = "PyTorch's memory snapshot as JSON, many times larger";
    const EXAMPLE: &'static str = "torch-snapshot-json run.trace --max-events 10000";
    const SUFFIX: &'static str = ".snapshot.json";
}

impl Exporter for PickledSnapshot {
    fn max_runs(&self) -> usize {
        1
    }

    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        write_runs(job, &self.options, &mut PickleWriter::new(out)?)
    }
}

impl Exporter for JsonSnapshot {
    fn max_runs(&self) -> usize {
        1
    }

    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        write_runs(job, &self.options, &mut JsonWriter::new(out))
    }
}

/// Writes the only run.
fn write_runs(
    job: &mut ExportJob,
    options: &SnapshotOptions,
    out: &mut impl ValueWriter,
) -> anyhow::Result<()> {
    let ExportJob { runs, resolver, notes, .. } = job;
    for run in runs {
        let survey = Survey::read(run, options.max_events)?;
        let stacks: Vec<u32> = survey.stacks.iter().copied().collect();
        let sites = run.sites_of_stacks(&stacks, resolver);
        let frames = FrameTable::new(&survey.stacks, &sites);
        write_snapshot(run, &survey, &frames, out)?;
        notes.extend(survey.notes);
    }
    Ok(())
}

/// What the first walk finds.
struct Survey {
    /// The state at the end of the window.
    model: AllocatorModel,
    /// Number of devices, which is that of traces.
    devices: u8,
    /// Devices with entries in their trace.
    traced: BTreeSet<u8>,
    /// Number of entries in the window.
    entries: u64,
    /// Number of entries left out at its begin.
    skipped: u64,
    /// The stacks of everything that is written.
    stacks: BTreeSet<u32>,
    notes: Vec<String>,
}

impl Survey {
    fn read(run: &mut ExportRun, max_entries: u64) -> anyhow::Result<Self> {
        let mut model = new_model(run);
        let mut last_uses: HashMap<u32, u64> = HashMap::new();
        let mut traced = BTreeSet::new();
        let mut entries = 0;
        let end = run.walk(&mut |walked| {
            for entry in model.on_event(walked) {
                if walked.is_inside {
                    traced.extend(entry.device);
                    if let Some(stack) = entry.stack {
                        last_uses.insert(stack, entries);
                    }
                    entries += 1;
                }
            }
            ControlFlow::Continue(())
        })?;
        let known = run.analysis.device_ordinals().max().map_or(0, |highest| highest + 1);
        let devices = traced.last().map_or(0, |highest| highest + 1).max(known).max(model.device_count());
        let skipped = entries.saturating_sub(max_entries);
        let used = last_uses.into_iter().filter(|(_, last)| *last >= skipped).map(|(stack, _)| stack);
        let mut stacks = model.stacks(devices);
        stacks.extend(used);
        let outside = driver_bytes_outside(&end, &model, run);
        let notes = notes_of(&model.inexact, run, (entries, skipped), outside);
        Ok(Self { model, devices, traced, entries, skipped, stacks, notes })
    }
}

fn new_model(run: &ExportRun) -> AllocatorModel {
    let with_torch = run.history.devices.iter().filter(|device| device.has_torch);
    let torch_devices = with_torch.map(|device| device.ordinal).collect();
    AllocatorModel::new(torch_devices, MomentLabels::new(&run.history))
}

/// Bytes of the driver's memory at the end that PyTorch's segments do not contain, on devices with
/// PyTorch.
fn driver_bytes_outside(end: &WalkEnd, model: &AllocatorModel, run: &ExportRun) -> u64 {
    let mut driver: BTreeMap<u8, u64> = BTreeMap::new();
    for block in
        end.live.iter().filter(|block| block.layer == BlockLayer::Driver && block.device != NO_DEVICE)
    {
        *driver.entry(block.device).or_default() += block.size_bytes;
    }
    let outside = run.history.devices.iter().filter(|device| device.has_torch).map(|device| {
        let segments = model.segments.of_device(device.ordinal).map(|segment| segment.bytes).sum();
        driver.get(&device.ordinal).copied().unwrap_or(0).saturating_sub(segments)
    });
    outside.sum()
}

fn write_snapshot(
    run: &mut ExportRun,
    survey: &Survey,
    frames: &FrameTable,
    out: &mut dyn ValueWriter,
) -> anyhow::Result<()> {
    out.begin_dict()?;
    out.key("gpumemtrace")?;
    write_origin(survey, out)?;
    out.key("segments")?;
    survey.model.write_segments(survey.devices, frames, out)?;
    out.key("device_traces")?;
    out.begin_list()?;
    for device in 0..survey.devices {
        out.begin_list()?;
        if survey.traced.contains(&device) {
            write_trace(run, survey, (device, frames), out)?;
        }
        out.end_list()?;
    }
    out.end_list()?;
    out.key("allocator_settings")?;
    write_settings(run.analysis.meta.allocator_conf(), out)?;
    out.end_dict()?;
    Ok(out.finish()?)
}

/// Writes where the file is from and what it lacks. The names of keys and actions come first, so
/// that a pickle refers to them in two bytes.
fn write_origin(survey: &Survey, out: &mut dyn ValueWriter) -> io::Result<()> {
    out.begin_dict()?;
    out.key("format_version")?;
    out.unsigned(FORMAT_VERSION)?;
    out.key("version")?;
    out.text(env!("CARGO_PKG_VERSION"))?;
    out.key("trace_keys")?;
    write_texts(ENTRY_KEYS, out)?;
    out.key("actions")?;
    write_texts(SnapshotAction::ALL.map(SnapshotAction::name), out)?;
    out.key("entries")?;
    out.unsigned(survey.entries - survey.skipped)?;
    out.key("entries_left_out")?;
    out.unsigned(survey.skipped)?;
    out.key("notes")?;
    write_texts(survey.notes.iter().map(String::as_str), out)?;
    out.end_dict()
}

fn write_texts<'a>(texts: impl IntoIterator<Item = &'a str>, out: &mut dyn ValueWriter) -> io::Result<()> {
    out.begin_list()?;
    for text in texts {
        out.text(text)?;
    }
    out.end_list()
}

/// Keys that an entry may have.
const ENTRY_KEYS: [&str; 9] =
    ["action", "addr", "device_free", "size", "stream", "pool_id", "time_us", "user_metadata", "frames"];

/// Walks the events again and writes the entries of one device.
fn write_trace(
    run: &mut ExportRun,
    survey: &Survey,
    (device, frames): (u8, &FrameTable),
    out: &mut dyn ValueWriter,
) -> anyhow::Result<()> {
    let start_unix_ns = start_unix_ns(run);
    let mut model = new_model(run);
    let (mut number, mut result) = (0, Ok(()));
    run.walk(&mut |walked| {
        for entry in model.on_event(walked).iter().filter(|_| walked.is_inside) {
            number += 1;
            if number > survey.skipped && entry.device.is_none_or(|own| own == device) {
                result = write_entry(entry, start_unix_ns, frames, out);
                if result.is_err() {
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(result?)
}

/// Start of the recording in nanoseconds since 1970; `None` if the trace does not say it.
fn start_unix_ns(run: &ExportRun) -> Option<u64> {
    let meta = &run.analysis.meta;
    let (unix_ns, clock_ns) = (meta.number("started_unix_ns")?, meta.number("started_ns")?);
    Some(unix_ns.saturating_add(run.analysis.start_ns).saturating_sub(clock_ns))
}

fn write_entry(
    entry: &SnapshotEntry,
    start_unix_ns: Option<u64>,
    frames: &FrameTable,
    out: &mut dyn ValueWriter,
) -> io::Result<()> {
    out.begin_dict()?;
    out.key("action")?;
    out.text(entry.action.name())?;
    out.key(if entry.action == SnapshotAction::OutOfMemory { "device_free" } else { "addr" })?;
    out.unsigned(entry.addr)?;
    out.key("size")?;
    out.unsigned(entry.size)?;
    out.key("stream")?;
    out.unsigned(entry.stream)?;
    write_pool("pool_id", entry.pool, out)?;
    out.key("time_us")?;
    out.unsigned(start_unix_ns.unwrap_or(0).saturating_add(entry.time_ns) / 1000)?;
    if let Some(label) = &entry.label {
        out.key("user_metadata")?;
        out.unique_text(label)?;
    }
    out.key("frames")?;
    frames.write_stack(entry.stack, out)?;
    out.end_dict()
}
