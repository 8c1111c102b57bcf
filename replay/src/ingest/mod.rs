//! A trace as files give it: blocks, and the ring beside them.
//!
//! Constraint: definitions come after their use, so sites are known only when the file has been read once; and this crate
//! opens nothing itself. Consequence: the caller gives a way to open the trace from its start, and it is read twice: first
//! definitions, metadata and end, then the events; each time the rest is passed over packed, which costs next to nothing.

pub mod definitions;
pub mod event_reader;
pub mod merger;
pub mod metal_totals;
pub mod prescan;

use std::ops::RangeInclusive;

use gpumemtrace_format::block::BlockKind;
use gpumemtrace_format::reader::{Damage, Item, OpenError, TraceReader};
use gpumemtrace_format::ring::{Record, RingImage};
use gpumemtrace_format::{Counter, Counters, End, EndReason, Meta};

use crate::ingest::definitions::Definitions;
pub(crate) use crate::ingest::event_reader::read_together;
pub use crate::ingest::event_reader::{Body, Open, read_events};
use crate::report::Ending;

/// Threads stamp events themselves, a moment before or after what start and end say.
const TIME_SLACK_NS: u64 = 100_000_000;
/// A run of which the end is not known is taken to be no longer than this: ten years.
const LONGEST_RUN_NS: u64 = 10 * 365 * 24 * 3600 * 1_000_000_000;
/// What is said of a ring file with another id.
const FOREIGN_RING: &str = "belongs to another trace";
/// Most damaged places that are kept.
const MAX_DAMAGE: usize = 100;
/// Most damaged places described one by one.
const MAX_DAMAGE_TOLD: usize = 3;

/// What stands beside the trace.
#[derive(Debug)]
pub enum RingFile {
    /// No such file.
    Absent,
    /// There is one, and it cannot be used: why.
    Unusable(String),
    /// This.
    Loaded(Box<RingImage>),
}

/// A trace to read.
pub struct Input<'a> {
    /// As the user named it.
    pub path: &'a str,
    /// Opens it from its start; the same bytes each time.
    pub open: &'a Open<'a>,
    /// Beside it. To be read *before* the trace is opened, so that what moves from one to the other meanwhile is seen twice
    /// and not never.
    pub ring: RingFile,
    /// The recorder still holds the file.
    pub is_locked: bool,
    /// The files that it consists of; may be empty where it is one.
    pub files: Vec<FileSpan>,
    /// Files that belong to the trace and are not there, a sentence each.
    pub absent: Vec<String>,
}

/// A file of a trace in parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSpan {
    /// As a user would find it.
    pub name: String,
    /// Where it begins in the whole, in bytes.
    pub start: u64,
    /// How many of its bytes are left out.
    pub skipped: u64,
}

/// What the first reading tells.
#[derive(Debug)]
pub struct Head {
    /// Who was traced.
    pub meta: Meta,
    /// The process closed the trace.
    pub end: Option<End>,
    /// What ids mean.
    pub definitions: Definitions,
    /// The ring, if it is of this trace.
    pub ring: Option<RingImage>,
    /// Why a ring file that is there was not used.
    pub ring_problem: Option<String>,
    /// The recorder still holds the file.
    pub is_locked: bool,
    /// Places that hold no events and could not be used.
    pub damage: Damages,
    /// The file ends inside a block that begins here.
    pub cut: Option<Cut>,
    /// Blocks from a newer recorder.
    pub unknown_blocks: u64,
    /// Length of the file of the trace's own name: of its parts, the last. 0 if it was not read to its end.
    pub own_bytes: u64,
    /// The files that it consists of; may be empty where it is one.
    pub files: Vec<FileSpan>,
    /// Files that belong to the trace and are not there, a sentence each.
    pub absent: Vec<String>,
}

/// The end of a file, inside a block.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Where the block begins, in bytes.
    pub offset: u64,
    /// What it was going to hold, if that much is there.
    pub kind: Option<BlockKind>,
}

impl Cut {
    /// True where the ring file holds what the block was going to: the recorder lets go of records only when their block is
    /// whole. Metadata and modules are in no ring.
    fn is_in_ring(self) -> bool {
        matches!(
            self.kind,
            Some(
                BlockKind::EVENTS
                    | BlockKind::ROWS
                    | BlockKind::CODES
                    | BlockKind::PY_NODES
                    | BlockKind::LINKS
                    | BlockKind::NATIVE_NODES
                    | BlockKind::END
            )
        )
    }
}

/// Places of a file that could not be used.
#[derive(Clone, Debug, Default)]
pub struct Damages {
    /// The first ones.
    pub first: Vec<Damage>,
    /// How many there are.
    pub count: u64,
}

impl Damages {
    pub(crate) fn add(&mut self, damage: Damage) {
        self.count += 1;
        if self.first.len() < MAX_DAMAGE {
            self.first.push(damage);
        }
    }
}

impl Head {
    /// Of a finished trace, of which nothing but this was read.
    pub fn summed(meta: Meta, end: Option<End>, absent: Vec<String>) -> Self {
        Self {
            meta,
            end,
            definitions: Definitions::default(),
            ring: None,
            ring_problem: None,
            is_locked: false,
            damage: Damages::default(),
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
            ..Self::summed(Meta::default(), None, input.absent)
        };
        let mut reader = TraceReader::new((input.open)()?)?.without_events();
        for item in reader.by_ref() {
            match item {
                Item::Meta(meta) => head.meta.merge(meta),
                Item::End(end) => head.end = Some(end),
                Item::Damage(damage) => head.damage.add(damage),
                Item::Cut { offset, kind } => head.cut = Some(Cut { offset, kind }),
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
            RingFile::Unusable(why) => self.ring_problem = Some(why),
            RingFile::Loaded(ring) => {
                let id = format!("{:032x}", u128::from_be_bytes(ring.trace_id));
                if self.meta.text("trace_id") == Some(&id) {
                    for record in &ring.records {
                        self.definitions.take_record(record);
                    }
                    self.ring = Some(*ring);
                } else {
                    self.ring_problem = Some(FOREIGN_RING.to_owned());
                }
            }
        }
    }

    /// True where what lies beside a closed trace cannot hold an event of a thread that was held up at its end: it is another
    /// trace's, or the recorder said that it had let go of the file.
    fn has_no_ring_of_its_own(&self) -> bool {
        self.ring_problem.as_deref() == Some(FOREIGN_RING) || self.meta.text("rings") == Some("memory")
    }

    /// Counters as the recorder left them, if it did.
    pub fn counters(&self) -> Option<&Counters> {
        self.end.as_ref().map(|end| &end.counters).or(self.ring.as_ref().map(|ring| &ring.counters))
    }

    /// A place in the whole, as a user would find it.
    fn place_of(&self, offset: u64) -> String {
        match self.files.iter().rfind(|file| file.start <= offset).filter(|_| self.files.len() > 1) {
            Some(file) => format!("{} of {}", offset - file.start + file.skipped, file.name),
            None => offset.to_string(),
        }
    }

    /// Parts that the recorder dropped to keep the trace small, and the events in them.
    pub fn dropped_parts(&self) -> (u64, u64) {
        let number = |name| self.meta.number(name).unwrap_or(0);
        (number("dropped_parts"), number("dropped_part_events"))
    }

    /// When recording ended, if anything says so.
    pub fn end_ns(&self) -> Option<u64> {
        if let Some(end) = &self.end {
            return Some(end.time_ns);
        }
        let ring = self.ring.as_ref()?;
        let said = (ring.end_time_ns > 0).then_some(ring.end_time_ns);
        let times = ring.records.iter().filter_map(|record| match record {
            Record::Event(event) => Some(event.time_ns),
            _ => None,
        });
        said.or(times.max())
    }

    /// The times that events of this run may have.
    pub fn times(&self) -> RangeInclusive<u64> {
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
                (end, Some(format!("recording stopped before the program did{why}")))
            }
            None if self.is_locked => (Ending::Running, None),
            None => (Ending::Killed, None),
        }
    }

    /// Bytes that the process had written and that are gone from the end of the file.
    fn cut_bytes(&self) -> u64 {
        // One that is being written may begin its next part between our look at the ring and that at the trace.
        let ring = self.ring.as_ref().filter(|_| !self.is_locked);
        ring.map_or(0, |ring| ring.trace_bytes.saturating_sub(self.own_bytes))
    }

    /// Records of the ring file that are not as they were. While they are being written, some always seem to be.
    fn malformed_records(&self) -> u64 {
        self.ring.as_ref().filter(|_| !self.is_locked).map_or(0, |ring| ring.malformed)
    }

    fn stopped_early(&self) -> bool {
        let reason = self.end.as_ref().map(|end| end.reason).or(self.ring.as_ref().and_then(|ring| ring.end));
        reason == Some(EndReason::Stopped)
    }
}

/// What is missing, told apart from what was under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Places in the order that were given out and whose events are gone.
    pub lost: u64,
    /// Places that were given out to calls in flight when the process died (or which has not written them yet).
    pub in_flight: u64,
}

/// Tells losses from calls in flight. A thread takes its place in the order a moment before its record is complete, so a
/// process that dies, or still runs, may leave one hole per thread; only where nothing else can have made the holes.
pub fn missing(head: &Head, body: &Body, threads: u64) -> Missing {
    let ring = head.ring.as_ref();
    // A thread that was held up for long while the recording ended writes its last event into the ring, after the end.
    let said = head.end.as_ref().map_or(0, |end| end.events);
    let given_out = ring.map_or(0, |ring| ring.next_seq).max(said);
    let holes = body.order.missing.saturating_add(given_out.saturating_sub(body.order.next_seq));
    // Those of parts that were dropped are told apart.
    let holes = holes.saturating_sub(head.dropped_parts().1);
    // A ring that is still there after the end belongs to such threads; one with an end of its own and no end in the trace is
    // that of a writer that did not finish.
    let said_end = head.end.is_none() && ring.is_some_and(|ring| ring.end.is_some());
    let dropped = head.counters().is_some_and(|counters| counters.get(Counter::DroppedEvents) > 0);
    let damaged = head.damage.count + body.damage.count + head.malformed_records() + head.cut_bytes() > 0;
    let only_threads = ring.is_some() && !said_end && !damaged && !dropped;
    let may_be_in_flight = only_threads && (holes <= threads.max(1) || head.is_locked);
    if may_be_in_flight {
        Missing { lost: 0, in_flight: holes }
    } else {
        Missing { lost: holes, in_flight: 0 }
    }
}

/// Everything that keeps a trace from being complete, one sentence each.
pub fn incompleteness(head: &Head, body: &Body, missing: Missing, dropped: u64) -> Vec<String> {
    let mut reasons = Vec::new();
    let has_all_records = head.ring.is_some() || head.end.is_some();
    if dropped > 0 {
        reasons.push(format!("the recorder dropped {dropped} events"));
    }
    if missing.lost > 0 {
        reasons.push(format!("{} events are missing from the file", missing.lost));
    }
    let (parts, events) = head.dropped_parts();
    if parts > 0 {
        reasons.push(format!(
            "the oldest {parts} parts with {events} events were dropped, as GPUMEMTRACE_KEEP asked for: what was allocated before the parts \
             that are left has no line"
        ));
    }
    reasons.extend(head.absent.iter().cloned());
    let mut damage: Vec<&Damage> = head.damage.first.iter().chain(&body.damage.first).collect();
    damage.sort_by_key(|damage| damage.offset);
    for damage in damage.iter().take(MAX_DAMAGE_TOLD) {
        let place = head.place_of(damage.offset);
        reasons.push(format!("damage at byte {place} ({} bytes): {}", damage.len, damage.why));
    }
    let more = (head.damage.count + body.damage.count).saturating_sub(MAX_DAMAGE_TOLD as u64);
    if more > 0 {
        reasons.push(format!("{more} more damaged places"));
    }
    // While the recorder writes, the block it is at is not whole yet.
    let is_being_written = head.is_locked && head.ring.is_some();
    if let Some(cut) = head.cut.filter(|cut| head.ring.is_none() || !(cut.is_in_ring() || is_being_written)) {
        let what = match cut.kind {
            Some(BlockKind::META) => " of metadata",
            Some(BlockKind::MODULES) => " of modules",
            _ => "",
        };
        reasons.push(format!("the file ends inside the block{what} at byte {}", head.place_of(cut.offset)));
    }
    if head.unknown_blocks > 0 {
        let blocks = head.unknown_blocks;
        reasons.push(format!("{blocks} blocks are from a newer recorder and were passed over"));
    }
    if body.unknown_events > 0 {
        let events = body.unknown_events;
        reasons.push(format!(
            "{events} events are of a kind that this gpumemtrace does not know, and are not in the numbers: use a newer one"
        ));
    }
    if body.misdated_events > 0 {
        let events = body.misdated_events;
        reasons.push(format!(
            "{events} events have a time outside of the run; each is placed at the time of the event before it"
        ));
    }
    let needs_ring = head.end.is_none() || missing.lost > 0 || !head.has_no_ring_of_its_own();
    if let Some(why) = head.ring_problem.as_ref().filter(|_| needs_ring) {
        reasons.push(format!("the ring file beside the trace {why}"));
    }
    if !has_all_records && head.ring_problem.is_none() {
        reasons.push(
            "the process did not close the trace and its ring file (the trace's name with .ring added) is not there: \
             the last moments are missing"
                .to_owned(),
        );
    }
    if head.stopped_early() {
        let message = head.end.as_ref().map(|end| end.message.as_str()).unwrap_or_default();
        let why = if message.is_empty() { String::new() } else { format!(": {message}") };
        reasons.push(format!("recording stopped before the program did{why}"));
    }
    if head.cut_bytes() > 0 {
        let (bytes, cut) = (head.own_bytes, head.cut_bytes());
        reasons.push(format!("the file ends at byte {bytes}; {cut} bytes more had been written"));
    }
    if head.malformed_records() > 0 {
        reasons.push(format!("{} records of the ring file make no sense", head.malformed_records()));
    }
    // The process counts before it records, and its ring file is read before its trace.
    let given_out = head.ring.as_ref().filter(|_| !head.is_locked).map_or(u64::MAX, |ring| ring.next_seq);
    if given_out < body.order.next_seq {
        reasons.push(format!(
            "the ring file says that there were {given_out} events, and there are {}",
            body.order.next_seq
        ));
    }
    for (counter, what) in [
        (Counter::WriteErrors, "writes of the trace file failed"),
        (Counter::ThreadsWithoutRing, "threads found no ring"),
        (Counter::InternalErrors, "internal failures of the recorder"),
    ] {
        let count = head.counters().map_or(0, |counters| counters.get(counter));
        if count > 0 {
            reasons.push(format!("{count} {what}"));
        }
    }
    reasons
}
