//! The first reading of a trace: metadata, end, definitions and the ring file.
//!
//! [`TraceHead::read`] skips event blocks without decompressing them. The other methods of
//! [`TraceHead`] interpret the metadata: how the process ended, the valid times of events, and
//! which parts and bytes are missing.

use std::ops::RangeInclusive;

use gpumemtrace_format::reader::{Item, OpenError, TraceReader};
use gpumemtrace_format::ring::{NO_WRITER_REASON, RingImage, RingRecord};
use gpumemtrace_format::{Counters, End, EndReason, Meta};

use super::{DamageList, FileSpan, Input, RingFile, TruncatedEnd};
use crate::ingest::definitions::Definitions;
use crate::report::{Ending, SNAPSHOT_MODE};

/// Tolerance around start and end: each thread reads the clock for its own events.
const TIME_SLACK_NS: u64 = 100_000_000;
/// Assumed maximum length of a run without a known end: ten years.
const MAX_RUN_NS: u64 = 10 * 365 * 24 * 3600 * 1_000_000_000;

/// Why a ring file beside the trace is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingProblem {
    /// It has a different trace id.
    Foreign,
    /// It cannot be read or decoded. The text completes "the ring file ...".
    Unusable(String),
}

/// Everything in a trace but the events.
#[derive(Debug)]
pub struct TraceHead {
    /// Metadata of the process and its environment.
    pub meta: Meta,
    /// The end block; `None` if the process did not close the trace.
    pub end: Option<End>,
    /// Definitions of codes, frames, modules and names.
    pub definitions: Definitions,
    /// The ring file, if it belongs to this trace.
    pub ring: Option<RingImage>,
    /// Why an existing ring file was not used.
    pub ring_problem: Option<RingProblem>,
    /// The recorder still holds its lock on the trace.
    pub is_locked: bool,
    /// Damaged regions outside event blocks.
    pub damage: DamageList,
    /// The block that the end of the file cuts off.
    pub truncated_end: Option<TruncatedEnd>,
    /// Blocks of kinds that only a newer recorder writes.
    pub unknown_blocks: u64,
    /// Length of the last part (or only file) in bytes; 0 if it was not read to its end.
    pub last_file_bytes: u64,
    /// The parts of the trace in order. May be empty for a trace in one file.
    pub files: Vec<FileSpan>,
    /// Files of the trace that are missing, cut or unreadable, one sentence each.
    pub absent: Vec<String>,
}

/// True if the trace was made of a snapshot of PyTorch.
pub(crate) fn is_torch_snapshot(meta: &Meta) -> bool {
    meta.list("mode").iter().any(|mode| mode == SNAPSHOT_MODE)
}

/// Parts that the recorder deleted to limit the total size of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DroppedParts {
    /// Number of deleted parts.
    pub(crate) parts: u64,
    /// Number of events in the deleted parts.
    pub(crate) events: u64,
}

impl TraceHead {
    /// The head of a finished trace from its metadata alone, without definitions or damage.
    pub fn without_events(meta: Meta, end: Option<End>, absent: Vec<String>) -> Self {
        Self {
            meta,
            end,
            definitions: Definitions::default(),
            ring: None,
            ring_problem: None,
            is_locked: false,
            damage: DamageList::default(),
            truncated_end: None,
            unknown_blocks: 0,
            last_file_bytes: 0,
            files: Vec::new(),
            absent,
        }
    }

    /// Reads everything but the events. Fails if the trace cannot be opened or is no trace.
    pub fn read(input: Input<'_>) -> Result<Self, OpenError> {
        let mut head = Self {
            is_locked: input.is_locked,
            files: input.files,
            ..Self::without_events(Meta::default(), None, input.absent)
        };
        let mut reader = TraceReader::new((input.open)()?)?.passing_holes().without_events();
        for item in reader.by_ref() {
            match item {
                Item::Meta(meta) => head.meta.merge(meta),
                Item::End(end) => head.end = Some(end),
                Item::CorruptRegion(damage) => head.damage.add(damage),
                Item::TruncatedBlock { offset, kind } => {
                    head.truncated_end = Some(TruncatedEnd { offset, kind });
                }
                Item::UnknownBlock(_) => head.unknown_blocks += 1,
                item => head.definitions.add_item(item),
            }
        }
        let last_start = head.files.last().map_or(0, |file| file.start - file.skipped.min(file.start));
        head.last_file_bytes = reader.offset().saturating_sub(last_start);
        head.attach_ring(input.ring);
        Ok(head)
    }

    /// Adds the ring and its definitions if its trace id matches; else sets `ring_problem`.
    pub fn attach_ring(&mut self, ring: RingFile) {
        match ring {
            RingFile::Absent => {}
            RingFile::Unusable(problem) => self.ring_problem = Some(RingProblem::Unusable(problem)),
            RingFile::Loaded(ring) => {
                let id = format!("{:032x}", u128::from_be_bytes(ring.trace_id));
                if self.meta.text("trace_id") == Some(&id) {
                    for record in &ring.records {
                        self.definitions.add_record(record);
                    }
                    self.ring = Some(*ring);
                } else {
                    self.ring_problem = Some(RingProblem::Foreign);
                }
            }
        }
    }

    /// True if a ring file beside this closed trace cannot hold late events of it. The file belongs
    /// to another trace, or the recorder had switched to rings in memory.
    pub(super) fn has_separated_ring(&self) -> bool {
        self.ring_problem == Some(RingProblem::Foreign) || self.meta.text("rings") == Some("memory")
    }

    /// The recorder's counters, from the end block or else from the ring.
    pub fn counters(&self) -> Option<&Counters> {
        self.end.as_ref().map(|end| &end.counters).or(self.ring.as_ref().map(|ring| &ring.counters))
    }

    /// Splits an offset in the concatenated trace into a file name and the offset in that file. The
    /// name is `None` for a trace in one file.
    pub(super) fn find_offset(&self, offset: u64) -> (Option<String>, u64) {
        match self.files.iter().rfind(|file| file.start <= offset).filter(|_| self.files.len() > 1) {
            Some(file) => (Some(file.name.clone()), offset - file.start + file.skipped),
            None => (None, offset),
        }
    }

    /// Parts that the recorder deleted to limit the total size.
    pub(crate) fn dropped_parts(&self) -> DroppedParts {
        let number = |name| self.meta.number(name).unwrap_or(0);
        DroppedParts { parts: number("dropped_parts"), events: number("dropped_part_events") }
    }

    /// For a running program: the first number that its events did not have yet when the reading of
    /// the ring file began; events from there on are outside of the view.
    ///
    /// The file is read from front to back while threads write. What they store meanwhile is in the
    /// image of a ring that is read late, and missing from one that was read early. The first page
    /// is read first, and an event below its `next_seq` is in the image, unless its thread has just
    /// taken the number, or its call is in flight.
    pub fn cut_seq(&self) -> Option<u64> {
        let ring = self.ring.as_ref().filter(|ring| ring.end.is_none())?;
        (self.is_locked && self.end.is_none()).then_some(ring.next_seq)
    }

    /// When recording ended, from the end block, the ring, or the last event in the ring.
    pub(crate) fn end_ns(&self) -> Option<u64> {
        if let Some(end) = &self.end {
            return Some(end.time_ns);
        }
        let ring = self.ring.as_ref()?;
        let ring_end = (ring.end_time_ns > 0).then_some(ring.end_time_ns);
        let cut = self.cut_seq().unwrap_or(u64::MAX);
        let event_times = ring.records.iter().filter_map(|record| match record {
            RingRecord::Event(event) if event.seq < cut => Some(event.time_ns),
            _ => None,
        });
        ring_end.or(event_times.max())
    }

    /// Number of events that the trace should hold; 0 if it is unknown.
    pub(crate) fn expected_events(&self) -> u64 {
        let in_ring = || self.ring.as_ref().map(|ring| ring.next_seq);
        let all = self.end.as_ref().map(|end| end.events).or_else(in_ring).unwrap_or(0);
        all.saturating_sub(self.dropped_parts().events)
    }

    /// The times that events of this run can have.
    pub(crate) fn valid_times(&self) -> RangeInclusive<u64> {
        let started = self.meta.number("started_ns");
        let block_end = self.end.as_ref().map(|end| end.time_ns);
        let ended = block_end.or(self.ring.as_ref().map(|ring| ring.end_time_ns).filter(|time| *time > 0));
        let known_end = ended.map(|end| end.saturating_add(TIME_SLACK_NS));
        let assumed_end = started.map_or(u64::MAX, |start| start.saturating_add(MAX_RUN_NS));
        started.unwrap_or(0).saturating_sub(TIME_SLACK_NS)..=known_end.unwrap_or(assumed_end)
    }

    /// How the process ended, with details such as the exit status where known.
    pub fn ending(&self) -> (Ending, Option<String>) {
        if is_torch_snapshot(&self.meta) {
            return (Ending::Running, Some("at the snapshot".to_owned()));
        }
        if let Some(status) = self.meta.text("wait_status") {
            let mut words = status.split_whitespace();
            let (cause, number) = (words.next(), words.next().and_then(|n| n.parse::<i32>().ok()));
            match (cause, number) {
                // SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS: the process's own
                // fault.
                (Some("signal"), Some(4..=8 | 11 | 31)) => return (Ending::Crashed, Some(status.to_owned())),
                (Some("signal"), _) => return (Ending::Killed, Some(status.to_owned())),
                (Some("exit"), _) => return (Ending::Exit, Some(status.to_owned())),
                _ => {}
            }
        }
        let recorded_end = match (&self.end, &self.ring) {
            (Some(end), _) => Some((end.reason, end.message.clone())),
            (None, Some(ring)) => ring.end.map(|reason| (reason, self.stop_reason().unwrap_or_default())),
            (None, None) => None,
        };
        match recorded_end {
            Some((EndReason::Exit, _)) => (Ending::Exit, None),
            Some((EndReason::QuickExit(status), _)) => (Ending::Exit, Some(format!("_exit({status})"))),
            Some((EndReason::Stopped, message)) => {
                let why = if message.is_empty() { String::new() } else { format!(": {message}") };
                let end = if self.is_locked { Ending::Running } else { Ending::Exit };
                (end, Some(format!("stopped{why}")))
            }
            None if self.is_locked => (Ending::Running, None),
            None => (Ending::Killed, None),
        }
    }

    /// False if nothing says how the process ended: the trace is a copy that was cut, or that lacks
    /// its ring file. A killed process leaves its ring file beside the trace.
    pub fn knows_end(&self) -> bool {
        let (ending, detail) = self.ending();
        ending != Ending::Killed || detail.is_some() || self.ring.is_some()
    }

    /// True if the recording was stopped before the process ended.
    pub(crate) fn was_stopped(&self) -> bool {
        let reason = match (&self.end, &self.ring) {
            (Some(end), _) => Some(end.reason),
            (None, ring) => ring.as_ref().and_then(|ring| ring.end),
        };
        reason == Some(EndReason::Stopped)
    }

    /// Bytes that the process had written to the file and that are missing at its end.
    pub(super) fn truncated_bytes(&self) -> u64 {
        // A running recorder may rotate to a new part between the reading of ring and trace.
        let ring = self.ring.as_ref().filter(|_| !self.is_locked);
        ring.map_or(0, |ring| ring.trace_bytes.saturating_sub(self.last_file_bytes))
    }

    /// Malformed records in the ring file. 0 for a running process: records that it is writing
    /// look malformed.
    pub(super) fn malformed_ring_records(&self) -> u64 {
        self.ring.as_ref().filter(|_| !self.is_locked).map_or(0, |ring| ring.malformed)
    }

    /// Why recording stopped, if the recorder left a reason.
    pub(super) fn stop_reason(&self) -> Option<String> {
        let reason = match (&self.end, &self.ring) {
            (Some(end), _) => end.message.clone(),
            (None, Some(ring)) if ring.has_lost_writer => NO_WRITER_REASON.to_owned(),
            (None, _) => String::new(),
        };
        Some(reason).filter(|reason| !reason.is_empty())
    }

    /// True if recording stopped before the program did.
    pub(super) fn has_stopped_early(&self) -> bool {
        let reason = self.end.as_ref().map(|end| end.reason).or(self.ring.as_ref().and_then(|ring| ring.end));
        reason == Some(EndReason::Stopped)
    }
}
