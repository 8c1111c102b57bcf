//! What the first reading of a trace gives: metadata, end, definitions and the ring file.

use std::ops::RangeInclusive;

use gpumemtrace_format::reader::{Item, OpenError, TraceReader};
use gpumemtrace_format::ring::{RingImage, RingRecord};
use gpumemtrace_format::{Counters, End, EndReason, Meta};

use super::{DamageList, FileSpan, Input, RingFile, TruncatedEnd};
use crate::ingest::definitions::Definitions;
use crate::report::Ending;

/// Threads stamp events themselves, a moment before or after what start and end say.
const TIME_SLACK_NS: u64 = 100_000_000;
/// A run of which the end is not known is taken to be no longer than this: ten years.
const LONGEST_RUN_NS: u64 = 10 * 365 * 24 * 3600 * 1_000_000_000;

/// Why a ring file beside the trace is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingProblem {
    /// Its trace id is another.
    Foreign,
    /// It cannot be read or decoded; why.
    Unusable(String),
}

/// What the first reading tells.
#[derive(Debug)]
pub struct TraceHead {
    /// Who was traced.
    pub meta: Meta,
    /// The process closed the trace.
    pub end: Option<End>,
    /// What ids mean.
    pub definitions: Definitions,
    /// The ring, if it is of this trace.
    pub ring: Option<RingImage>,
    /// Why a ring file that is there was not used.
    pub ring_problem: Option<RingProblem>,
    /// The recorder still holds the file.
    pub is_locked: bool,
    /// Places that hold no events and could not be used.
    pub damage: DamageList,
    /// The file ends inside a block that begins here.
    pub cut: Option<TruncatedEnd>,
    /// Blocks from a newer recorder.
    pub unknown_blocks: u64,
    /// Length of the file of the trace's own name: of its parts, the last. 0 if it was not read to its end.
    pub own_bytes: u64,
    /// The files that it consists of; may be empty where it is one.
    pub files: Vec<FileSpan>,
    /// Files that belong to the trace and are not there, a sentence each.
    pub absent: Vec<String>,
}

impl TraceHead {
    /// Of a finished trace, of which nothing but this was read.
    pub fn without_events(meta: Meta, end: Option<End>, absent: Vec<String>) -> Self {
        Self {
            meta,
            end,
            definitions: Definitions::default(),
            ring: None,
            ring_problem: None,
            is_locked: false,
            damage: DamageList::default(),
            cut: None,
            unknown_blocks: 0,
            own_bytes: 0,
            files: Vec::new(),
            absent,
        }
    }

    /// Reads it.
    pub fn read(input: Input<'_>) -> Result<Self, OpenError> {
        let mut head = Self {
            is_locked: input.is_locked,
            files: input.files,
            ..Self::without_events(Meta::default(), None, input.absent)
        };
        let mut reader = TraceReader::new((input.open)()?)?.without_events();
        for item in reader.by_ref() {
            match item {
                Item::Meta(meta) => head.meta.merge(meta),
                Item::End(end) => head.end = Some(end),
                Item::CorruptRegion(damage) => head.damage.add(damage),
                Item::TruncatedBlock { offset, kind } => head.cut = Some(TruncatedEnd { offset, kind }),
                Item::UnknownBlock(_) => head.unknown_blocks += 1,
                item => head.definitions.take(item),
            }
        }
        let own = head.files.last().map_or(0, |file| file.start - file.skipped.min(file.start));
        head.own_bytes = reader.offset().saturating_sub(own);
        head.join(input.ring);
        Ok(head)
    }

    /// Takes over the ring file, if it belongs to this trace.
    pub fn join(&mut self, ring: RingFile) {
        match ring {
            RingFile::Absent => {}
            RingFile::Unusable(why) => self.ring_problem = Some(RingProblem::Unusable(why)),
            RingFile::Loaded(ring) => {
                let id = format!("{:032x}", u128::from_be_bytes(ring.trace_id));
                if self.meta.text("trace_id") == Some(&id) {
                    for record in &ring.records {
                        self.definitions.take_record(record);
                    }
                    self.ring = Some(*ring);
                } else {
                    self.ring_problem = Some(RingProblem::Foreign);
                }
            }
        }
    }

    /// True where what lies beside a closed trace cannot hold an event of a thread that was held up at its end: it is another
    /// trace's, or the recorder said that it had let go of the file.
    pub(super) fn has_no_ring_of_its_own(&self) -> bool {
        self.ring_problem == Some(RingProblem::Foreign) || self.meta.text("rings") == Some("memory")
    }

    /// Counters as the recorder left them, if it did.
    pub fn counters(&self) -> Option<&Counters> {
        self.end.as_ref().map(|end| &end.counters).or(self.ring.as_ref().map(|ring| &ring.counters))
    }

    /// The file and the offset in it of a position in the whole trace; no file if the trace has only one.
    pub(super) fn place_of(&self, offset: u64) -> (Option<String>, u64) {
        match self.files.iter().rfind(|file| file.start <= offset).filter(|_| self.files.len() > 1) {
            Some(file) => (Some(file.name.clone()), offset - file.start + file.skipped),
            None => (None, offset),
        }
    }

    /// Parts that the recorder dropped to keep the trace small, and the events in them.
    pub(crate) fn dropped_parts(&self) -> (u64, u64) {
        let number = |name| self.meta.number(name).unwrap_or(0);
        (number("dropped_parts"), number("dropped_part_events"))
    }

    /// When recording ended, if anything says so.
    pub(crate) fn end_ns(&self) -> Option<u64> {
        if let Some(end) = &self.end {
            return Some(end.time_ns);
        }
        let ring = self.ring.as_ref()?;
        let said = (ring.end_time_ns > 0).then_some(ring.end_time_ns);
        let times = ring.records.iter().filter_map(|record| match record {
            RingRecord::Event(event) => Some(event.time_ns),
            _ => None,
        });
        said.or(times.max())
    }

    /// The times that events of this run may have.
    pub(crate) fn times(&self) -> RangeInclusive<u64> {
        let started = self.meta.number("started_ns");
        let said = self.end.as_ref().map(|end| end.time_ns);
        let ended = said.or(self.ring.as_ref().map(|ring| ring.end_time_ns).filter(|time| *time > 0));
        let latest = ended.map(|end| end.saturating_add(TIME_SLACK_NS));
        let longest = started.map_or(u64::MAX, |start| start.saturating_add(LONGEST_RUN_NS));
        started.unwrap_or(0).saturating_sub(TIME_SLACK_NS)..=latest.unwrap_or(longest)
    }

    /// How the process ended, and what is known beyond that.
    pub fn ending(&self) -> (Ending, Option<String>) {
        if let Some(status) = self.meta.text("wait_status") {
            let mut words = status.split_whitespace();
            let (what, number) = (words.next(), words.next().and_then(|n| n.parse::<i32>().ok()));
            match (what, number) {
                // SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS: its own doing.
                (Some("signal"), Some(4..=8 | 11 | 31)) => return (Ending::Crashed, Some(status.to_owned())),
                (Some("signal"), _) => return (Ending::Killed, Some(status.to_owned())),
                (Some("exit"), _) => return (Ending::Exit, Some(status.to_owned())),
                _ => {}
            }
        }
        let said = match (&self.end, &self.ring) {
            (Some(end), _) => Some((end.reason, end.message.clone())),
            (None, Some(ring)) => ring.end.map(|reason| (reason, String::new())),
            (None, None) => None,
        };
        match said {
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

    /// Bytes that the process had written and that are gone from the end of the file.
    pub(super) fn cut_bytes(&self) -> u64 {
        // One that is being written may begin its next part between our look at the ring and that at the trace.
        let ring = self.ring.as_ref().filter(|_| !self.is_locked);
        ring.map_or(0, |ring| ring.trace_bytes.saturating_sub(self.own_bytes))
    }

    /// Records of the ring file that are not as they were. While they are being written, some always seem to be.
    pub(super) fn malformed_records(&self) -> u64 {
        self.ring.as_ref().filter(|_| !self.is_locked).map_or(0, |ring| ring.malformed)
    }

    pub(super) fn stopped_early(&self) -> bool {
        let reason = self.end.as_ref().map(|end| end.reason).or(self.ring.as_ref().and_then(|ring| ring.end));
        reason == Some(EndReason::Stopped)
    }
}
