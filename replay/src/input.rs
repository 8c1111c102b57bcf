//! A trace as files give it: blocks, and the ring beside them.
//!
//! Constraint: definitions come after their use, so sites are known only when the file has been read once; and this crate
//! opens nothing itself. Consequence: the caller gives a way to open the trace from its start, and it is read twice: first
//! definitions, metadata and end (events are passed over packed, which costs next to nothing), then the events.

use std::io::Read;
use std::ops::ControlFlow;

use gpumemtrace_format::reader::{Damage, Item, OpenError, TraceReader};
use gpumemtrace_format::ring::{Record, RingImage};
use gpumemtrace_format::{Counter, Counters, End, EndReason, Event, Meta};

use crate::definitions::Definitions;
use crate::report::Ending;
use crate::stream::{Merger, OrderSummary};

/// Most damaged places described one by one.
const MAX_DAMAGE: usize = 100;

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
    pub open: &'a dyn Fn() -> std::io::Result<Box<dyn Read>>,
    /// Beside it. To be read *before* the trace is opened, so that what moves from one to the other meanwhile is seen twice
    /// and not never.
    pub ring: RingFile,
    /// The recorder still holds the file.
    pub is_locked: bool,
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
}

impl Head {
    /// Reads it.
    pub fn read(input: Input<'_>) -> Result<Self, OpenError> {
        let mut head = Self {
            meta: Meta::default(),
            end: None,
            definitions: Definitions::default(),
            ring: None,
            ring_problem: None,
            is_locked: input.is_locked,
        };
        for item in TraceReader::new((input.open)()?)?.without_events() {
            match item {
                Item::Meta(meta) => head.meta.merge(meta),
                Item::End(end) => head.end = Some(end),
                item => head.definitions.take(item),
            }
        }
        match input.ring {
            RingFile::Absent => {}
            RingFile::Unusable(why) => head.ring_problem = Some(why),
            RingFile::Loaded(ring) => {
                let id = format!("{:032x}", u128::from_be_bytes(ring.trace_id));
                if head.meta.text("trace_id") == Some(&id) {
                    for record in &ring.records {
                        head.definitions.take_record(record);
                    }
                    head.ring = Some(*ring);
                } else {
                    head.ring_problem = Some("belongs to another trace".to_owned());
                }
            }
        }
        Ok(head)
    }

    /// Counters as the recorder left them, if it did.
    pub fn counters(&self) -> Option<&Counters> {
        self.end.as_ref().map(|end| &end.counters).or(self.ring.as_ref().map(|ring| &ring.counters))
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

    fn stopped_early(&self) -> bool {
        let reason = self.end.as_ref().map(|end| end.reason).or(self.ring.as_ref().and_then(|ring| ring.end));
        reason == Some(EndReason::Stopped)
    }
}

/// What the second reading showed beside the events.
#[derive(Debug, Default)]
pub struct Body {
    /// The order.
    pub order: OrderSummary,
    /// Places that could not be used, the first ones.
    pub damage: Vec<Damage>,
    /// How many there were.
    pub damaged: u64,
    /// The file ends inside a block that begins here.
    pub cut: Option<u64>,
    /// Blocks from a newer recorder.
    pub unknown_blocks: u64,
}

/// Hands on all events in order. `sink` may end it early.
pub fn read_events(
    open: &dyn Fn() -> std::io::Result<Box<dyn Read>>,
    ring: Option<&RingImage>,
    sink: &mut impl FnMut(&Event) -> ControlFlow<()>,
) -> Result<Body, OpenError> {
    let mut body = Body::default();
    let mut merger = Merger::new();
    let mut stopped = false;
    for item in TraceReader::new(open()?)? {
        match item {
            Item::Events(events) => stopped = merger.push(events, sink).is_break(),
            Item::Damage(damage) => {
                body.damaged += 1;
                if body.damage.len() < MAX_DAMAGE {
                    body.damage.push(damage);
                }
            }
            Item::Cut { offset } => body.cut = Some(offset),
            Item::UnknownBlock(_) => body.unknown_blocks += 1,
            _ => {}
        }
        if stopped {
            return Ok(body);
        }
    }
    if let Some(ring) = ring {
        let events = ring.records.iter().filter_map(|record| match record {
            Record::Event(event) => Some(*event),
            _ => None,
        });
        let mut events: Vec<Event> = events.collect();
        events.sort_by_key(|event| event.seq);
        stopped = merger.push(events, sink).is_break();
    }
    if !stopped {
        body.order = merger.finish(sink);
    }
    Ok(body)
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
    let given_out = head.end.as_ref().map(|end| end.events).or(ring.map(|ring| ring.next_seq)).unwrap_or(0);
    let holes = body.order.missing.saturating_add(given_out.saturating_sub(body.order.next_seq));
    let said_end = head.end.is_some() || ring.is_some_and(|ring| ring.end.is_some());
    let dropped = head.counters().is_some_and(|counters| counters.get(Counter::DroppedEvents) > 0);
    let malformed = ring.is_some_and(|ring| ring.malformed > 0);
    let only_threads = ring.is_some() && !said_end && body.damaged == 0 && !dropped && !malformed;
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
    for damage in body.damage.iter().take(3) {
        reasons.push(format!("damage at byte {} ({} bytes): {}", damage.offset, damage.len, damage.why));
    }
    if body.damaged > 3 {
        reasons.push(format!("{} more damaged places", body.damaged - 3));
    }
    if let Some(offset) = body.cut.filter(|_| head.ring.is_none()) {
        reasons.push(format!("the file ends inside the block at byte {offset}"));
    }
    if let Some(why) = &head.ring_problem {
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
    if let Some(ring) = head.ring.as_ref().filter(|ring| ring.malformed > 0 && !head.is_locked) {
        reasons.push(format!("{} records of the ring file make no sense", ring.malformed));
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
