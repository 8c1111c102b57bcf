//! Losses and notes: typed facts, each with a sentence.

use schemars::JsonSchema;
use serde::Serialize;

use super::json_enum::json_enum;
use super::{Accelerator, PluggableMode};

/// A typed fact and the sentence that says it.
///
/// The analyses leave `message` empty. The command fills it before it prints a document.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "{T}", description = "A fact, and the sentence that says it.")]
pub struct Worded<T> {
    /// The kind of the fact, with its numbers.
    #[serde(flatten)]
    pub fact: T,
    /// The fact as one sentence.
    pub message: String,
}

impl<T> From<T> for Worded<T> {
    fn from(fact: T) -> Self {
        Self { fact, message: String::new() }
    }
}

/// Something that is missing from a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TraceLoss {
    /// The recorder dropped events.
    DroppedEvents {
        /// The number of events.
        events: u64,
    },
    /// Events are missing from the file.
    MissingEvents {
        /// The number of events.
        events: u64,
    },
    /// The recorder deleted the oldest parts, as `GPUMEMTRACE_MAX_TOTAL_SIZE` requests.
    DroppedParts {
        /// The number of parts.
        parts: u64,
        /// The number of events in them.
        events: u64,
    },
    /// A snapshot of PyTorch lacks its oldest events: the ring buffer overwrote them, or the
    /// program cleared the history.
    HistoryOverwritten,
    /// Files of the trace are missing.
    AbsentFiles {
        /// Which files are missing, as a phrase.
        detail: String,
    },
    /// A region of the file is damaged.
    Damage {
        /// The file, if the trace has several.
        file: Option<String>,
        /// The position in the file.
        offset_bytes: u64,
        /// The size of the region.
        bytes: u64,
        /// What is wrong with it, as a phrase.
        detail: String,
    },
    /// More damaged regions than are described one by one.
    MoreDamage {
        /// The number of further regions.
        regions: u64,
    },
    /// The file ends inside a block.
    CutBlock {
        /// The file, if the trace has several.
        file: Option<String>,
        /// The position of the block in the file.
        offset_bytes: u64,
        /// What the block holds.
        content: BlockContent,
    },
    /// The file has blocks of a newer recorder.
    UnknownBlocks {
        /// The number of blocks.
        blocks: u64,
    },
    /// The file has events of kinds that this version does not know.
    UnknownEvents {
        /// The number of events.
        events: u64,
    },
    /// Events have times outside the run.
    MisdatedEvents {
        /// The number of events.
        events: u64,
    },
    /// The ring file cannot be used.
    RingUnusable {
        /// Why, as a phrase.
        detail: String,
    },
    /// The ring file belongs to another trace.
    RingForeign,
    /// The process did not close the trace, and there is no ring file.
    RingMissing,
    /// The recording stopped before the program ended.
    StoppedEarly {
        /// The reason that the recorder wrote.
        reason: Option<String>,
    },
    /// The end of the file is missing.
    TruncatedFile {
        /// The size of the file.
        file_bytes: u64,
        /// The bytes that are missing.
        missing_bytes: u64,
    },
    /// The ring file has records that cannot be decoded.
    MalformedRingRecords {
        /// The number of records.
        records: u64,
    },
    /// The trace has more events than the ring file counted.
    RingBehindTrace {
        /// The events that the ring file counted.
        ring_events: u64,
        /// The events of the trace.
        trace_events: u64,
    },
    /// Writes to the trace file failed.
    WriteErrors {
        /// The number of writes.
        writes: u64,
    },
    /// Threads found no free ring buffer.
    ThreadsWithoutRing {
        /// The number of threads.
        threads: u64,
    },
    /// The recorder had internal errors.
    InternalErrors {
        /// The number of errors.
        errors: u64,
    },
    /// Signal handlers interrupted the recorder and called the GPU, or left it by a jump.
    InterruptedEvents {
        /// The events that were lost.
        events: u64,
    },
    /// The program used the GPU after the trace was finished, while the process ended.
    EventsAfterEnd {
        /// The events that were not recorded.
        events: u64,
    },
    /// Stack frames are used and not defined in the file.
    UndefinedFrames {
        /// The number of frames.
        frames: u64,
    },
}

json_enum! {
    /// What a block of the file holds.
    enum BlockContent {
        /// Metadata of the trace.
        Metadata = "metadata",
        /// The list of loaded libraries.
        Modules = "modules",
        /// Events, definitions, or unknown.
        Other = "other",
    }
}

/// A fact about a recording that is not a loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TraceNote {
    /// A note that the recorder wrote.
    Recorder {
        /// The text of the note.
        text: String,
    },
    /// Autograd threads' events are shown at the forward line that they work for.
    BackwardAtForwardLine {
        /// The number of such events.
        events: u64,
        /// The number of all events.
        all_events: u64,
    },
    /// Autograd threads' events are shown at the call of `backward()`.
    BackwardAtCall {
        /// The number of such events.
        events: u64,
        /// The number of all events.
        all_events: u64,
    },
    /// The program called allocation functions that are not intercepted.
    UncoveredFunctions {
        /// The names of the functions.
        functions: Vec<String>,
    },
    /// The program started the recording itself, with `gpumemtrace.start()`.
    StartedByProgram,
    /// The recording attached after the program had loaded the driver.
    AttachedLate,
    /// The trace is of Metal.
    Metal,
    /// gpumemtrace's allocator served the tensors.
    PluggableAllocator {
        /// How the pluggable allocator was used.
        mode: PluggableMode,
    },
    /// Managed memory is not counted.
    ManagedMemory {
        /// Its peak of allocated bytes.
        peak_bytes: u64,
        /// The most that PyTorch counted as reserved memory of a GPU.
        reserved_bytes: u64,
        /// Calls of the program that moved some of it to a GPU ahead of its use.
        prefetches: u64,
        /// The bytes of these calls; the same memory may move several times.
        prefetched_bytes: u64,
    },
    /// Pools of host memory are not counted.
    HostPools {
        /// The peak of bytes allocated from them.
        peak_bytes: u64,
    },
    /// Memory of other processes or APIs was mapped and is not counted.
    ForeignMemory {
        /// Its peak of allocated bytes.
        peak_bytes: u64,
    },
    /// The trace ends before a moment that `--at` requested.
    UnreachedSnapshot {
        /// The moment as requested.
        when: String,
    },
    /// Calls were in flight when the process ended, or when the trace of a running one was read.
    CallsInFlight {
        /// The number of calls.
        calls: u64,
        /// True if the process was running.
        is_running: bool,
    },
    /// The trace was made of a snapshot of PyTorch, which has no driver calls.
    TorchSnapshot {
        /// The events of the allocator in it; 0 if no history was recorded.
        events: u64,
        /// Blocks that existed before the first of them.
        earlier_blocks: u64,
        /// Bytes of those blocks.
        earlier_bytes: u64,
    },
    /// The snapshot is of a device with another allocator than CUDA's.
    OtherAccelerator {
        /// The kind of the device.
        accelerator: Accelerator,
        /// Bytes that its allocator adds to each request; 0 for none.
        padding_bytes: u64,
    },
    /// The snapshot lacks the segments at its end, which PyTorch writes.
    SnapshotWithoutSegments,
    /// Events of a snapshot contradict each other, or the blocks at its end.
    SnapshotContradictions {
        /// The number of contradictions.
        count: u64,
    },
    /// Sizes of blocks in a snapshot are computed from requests, and some are wrong.
    SnapshotSizes {
        /// Blocks that exist at the end. The snapshot has their sizes.
        checked: u64,
        /// Those of them with another size than computed.
        wrong: u64,
    },
    /// Parts of a snapshot that this version does not know were passed over.
    SnapshotPassedOver {
        /// Events and entries of lists.
        entries: u64,
        /// Distinct keys of dictionaries.
        keys: u64,
    },
    /// Events of pinned host memory in a snapshot are not counted.
    SnapshotHostMemory {
        /// The number of events.
        events: u64,
    },
    /// There are more marks than `marks` lists.
    UnlistedMarks {
        /// The number of marks that are not listed.
        marks: u64,
    },
    /// PyTorch's trace tracker and its allocator disagreed.
    TrackerMismatches {
        /// The number of blocks with an unknown requested size.
        blocks: u64,
    },
}
