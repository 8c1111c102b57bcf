//! Profiles for pprof (`go tool pprof`, Pyroscope, Parca), with the value names of Go's heap
//! profiles.
//!
//! Each sample has a stack, [`SAMPLE_TYPES`], and labels: device, rank, thread, stream, and the
//! category of blocks that were live at the run's peak. Labels are texts such as `gpu0`, because
//! pprof takes a bare number in a filter for a range.
//! Format: <https://github.com/google/pprof/blob/main/proto/profile.proto>.

mod tables;

use std::io::Write;

use flate2::{Compression, GzBuilder};

use self::tables::PprofTables;
use super::protobuf::Message;
use super::stacks::{
    CollectedRun, DeviceStacks, EMPTY_NOTE, NamedStacks, RowLabels, StackRow, collect_stacks,
};
use super::{ExportFormat, ExportJob, Exporter};
use gpumemtrace_format::source_path::file_name;

/// Name and unit of a value of a sample, and the value of a row.
type SampleType = (&'static str, &'static str, fn(&StackRow) -> u64);

const SAMPLE_TYPES: [SampleType; 5] = [
    ("alloc_objects", "count", |row| row.allocated.blocks),
    (ALLOC_SPACE, "bytes", |row| row.allocated.bytes),
    ("inuse_objects", "count", |row| row.end.blocks),
    (INUSE_SPACE, "bytes", |row| row.end.bytes),
    (PEAK_SPACE, "bytes", |row| row.peak.bytes),
];
const ALLOC_SPACE: &str = "alloc_space";
const INUSE_SPACE: &str = "inuse_space";
const PEAK_SPACE: &str = "peak_space";
const COMMENTS: [&str; 4] = [
    concat!("gpumemtrace ", env!("CARGO_PKG_VERSION")),
    "Sizes are as the allocator rounded them up.",
    "alloc: in the run or window. inuse: live at the end of the program or window.",
    "peak_space: live at the peak of each device. Only blocks live at the run's peak have a category.",
];

#[derive(clap::Args)]
pub(crate) struct PprofExporter {
    /// The value to show first
    #[arg(long, value_enum, default_value_t)]
    weight: PprofWeight,
}

/// The weights that pprof's names have a word for. It has none for leaks.
#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum PprofWeight {
    /// Live at the peak of each device
    Peak,
    /// Live at the end of the program, or of the window
    #[default]
    End,
    /// Allocated in the whole run, or in the window
    Allocated,
}

impl ExportFormat for PprofExporter {
    const NAME: &'static str = "pprof";
    const HELP: &'static str = "Heap profile for pprof: allocated, in use at the end, live at the peak";
    const EXAMPLE: &'static str = "pprof run.trace -o run.pb.gz && go tool pprof -top run.pb.gz";
    const SUFFIX: &'static str = ".pb.gz";
}

impl Exporter for PprofExporter {
    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let default_type = match self.weight {
            PprofWeight::End => INUSE_SPACE,
            PprofWeight::Peak => PEAK_SPACE,
            PprofWeight::Allocated => ALLOC_SPACE,
        };
        // The viewer shows the first mapping as the name of the profiled file.
        let traces = &job.report.traces;
        let program = traces.iter().map(|trace| file_name(&trace.path)).collect::<Vec<_>>().join(", ");
        let mut profile = PprofProfile::new(program);
        let mut is_empty = true;
        for index in 0..job.runs.len() {
            let run = &mut job.runs[index];
            let CollectedRun { devices, span_ns } = collect_stacks(run, index, &job.report, true)?;
            is_empty &= devices.iter().all(|device| device.rows.is_empty());
            let rank = job.report.traces[index].rank;
            for device in &devices {
                let stacks = NamedStacks::new(run, device.stacks(), &mut job.resolver);
                profile.add_device(device, rank, &stacks);
            }
            let started_ns = job.report.traces[index].started_unix_ns;
            profile.extend_span(started_ns, span_ns);
        }
        // A time in the header would make equal profiles unequal files.
        let mut gzip = GzBuilder::new().mtime(0).write(out, Compression::default());
        gzip.write_all(profile.finish(default_type).as_bytes())?;
        gzip.finish()?;
        if is_empty {
            job.notes.push(EMPTY_NOTE.to_owned());
        }
        Ok(())
    }
}

/// A profile that is being built.
struct PprofProfile {
    message: Message,
    tables: PprofTables,
    /// Begin and end of the events in nanoseconds since the epoch.
    span_unix_ns: Option<(u64, u64)>,
}

impl PprofProfile {
    fn new(program: String) -> Self {
        let mut profile =
            Self { message: Message::new(), tables: PprofTables::new(program), span_unix_ns: None };
        for (name, unit, _) in SAMPLE_TYPES {
            let sample_type = profile.value_type(name, unit);
            profile.message.message(1, &sample_type);
        }
        profile
    }

    fn value_type(&mut self, name: &str, unit: &str) -> Message {
        let mut value_type = Message::new();
        value_type.uint(1, self.tables.string(name)).uint(2, self.tables.string(unit));
        value_type
    }

    fn add_device(&mut self, device: &DeviceStacks, rank: Option<u64>, stacks: &NamedStacks) {
        for row in &device.rows {
            let frames = stacks.frames(row.key.stack);
            let mut sample = Message::new();
            sample.packed(1, frames.iter().rev().map(|frame| self.tables.location(frame)));
            sample.packed(2, SAMPLE_TYPES.map(|(.., value)| value(row).min(i64::MAX as u64)));
            self.add_label(&mut sample, "device", &format!("gpu{}", device.device));
            if let Some(rank) = rank {
                self.add_label(&mut sample, "rank", &format!("rank{rank}"));
            }
            if let Some(RowLabels { stream, thread, category }) = row.key.labels {
                self.add_label(&mut sample, "thread", &format!("thread{}", thread.0));
                if let Some(stream) = stream {
                    self.add_label(&mut sample, "stream", &format!("stream{stream:#x}"));
                }
                if let Some(category) = category {
                    self.add_label(&mut sample, "category", category.name());
                }
            }
            self.message.message(2, &sample);
        }
    }

    fn add_label(&mut self, sample: &mut Message, key: &str, value: &str) {
        let mut label = Message::new();
        label.uint(1, self.tables.string(key)).uint(2, self.tables.string(value));
        sample.message(3, &label);
    }

    /// Adds the time of a run; `span_ns` is since the start of its recording.
    fn extend_span(&mut self, started_unix_ns: Option<u64>, span_ns: Option<(u64, u64)>) {
        let (Some(start), Some((first, last))) = (started_unix_ns, span_ns) else { return };
        let (first, last) = (start.saturating_add(first), start.saturating_add(last));
        let (begin, end) = self.span_unix_ns.unwrap_or((first, last));
        self.span_unix_ns = Some((begin.min(first), end.max(last)));
    }

    fn finish(mut self, default_type: &str) -> Message {
        if let Some((begin, end)) = self.span_unix_ns {
            self.message.uint(9, begin.min(i64::MAX as u64)).uint(10, (end - begin).min(i64::MAX as u64));
        }
        let period_type = self.value_type("space", "bytes");
        // Every block is counted.
        self.message.message(11, &period_type).uint(12, 1);
        let comments = COMMENTS.map(|comment| self.tables.string(comment));
        self.message.packed(13, comments);
        let default_type = self.tables.string(default_type);
        self.message.uint(14, default_type);
        self.tables.write(&mut self.message);
        self.message
    }
}
