//! The trace of a snapshot: metadata, events, then the definitions that they refer to.

mod annotations;
mod device_events;
mod exported_moments;
mod metadata;
mod stack_tree;
mod trace_writer;

use std::collections::BTreeMap;

use gpumemtrace_format::block::BlockKind;
use gpumemtrace_format::event::{FLAG_EXISTED, MARK_STEP, NO_SEQ};
use gpumemtrace_format::{
    CodeId, Counters, End, EndReason, Event, EventKind, NodeId, ThreadId, TrackerState,
};

use crate::history::DeviceHistories;
use crate::values::{TextId, TorchSnapshot};
use annotations::{AnnotatedRange, nest_annotations};
use device_events::{DeviceEvents, SizeChecks};
use stack_tree::StackTree;
use trace_writer::TraceWriter;

/// All events of PyTorch's allocator are on one thread: a snapshot does not say which it was.
const ALLOCATOR_THREAD: ThreadId = ThreadId(1);
/// Annotations that overlap without nesting are on threads of this number and above.
const FIRST_ANNOTATION_THREAD: u32 = 1000;

/// Distinct labels of blocks; all further ones are one.
const MAX_LABELS: usize = 1000;
const OTHER_LABELS: &str = "other labels";
/// Longest label of a block, in bytes; the rest is dropped.
const MAX_LABEL_BYTES: usize = 200;

/// Encodes the histories as the bytes of a trace.
pub(crate) fn encode(histories: DeviceHistories) -> Vec<u8> {
    let DeviceHistories { mut snapshot, rules, devices, facts } = histories;
    let times = metadata::HistoryTimes::of(&snapshot, &devices);
    let mut writer = TraceWriter::default();
    let annotations = nest_annotations(&std::mem::take(&mut snapshot.annotations));
    metadata::add_metadata(&mut writer, &snapshot, facts, times);
    let mut output = EventOutput {
        writer: &mut writer,
        tree: StackTree::new(),
        next_seq: 0,
        last_ns: times.first_ns,
        labels: BTreeMap::new(),
    };
    let mut events: Vec<DeviceEvents<'_>> =
        devices.into_iter().map(|device| DeviceEvents::new(device, &snapshot, &rules)).collect();
    if let Some(first) = events.iter_mut().find(|device| device.next_ns.is_some()) {
        first.has_moments = true;
    }
    let attached = [TrackerState::Attached as u64, 0];
    output.add(Event { aux: attached, flags: FLAG_EXISTED, ..Event::new(EventKind::TRACKER) }, None);
    for device in &mut events {
        device.add_start(&mut output);
    }
    let mut annotations = AnnotationEvents::new(&annotations);
    // Devices have clocks of their own, so the next event is the earliest of all.
    while let Some((until_ns, device)) =
        events.iter_mut().filter_map(|device| Some((device.next_ns?, device))).min_by_key(|(at, _)| *at)
    {
        annotations.add_until(until_ns, &mut output, &snapshot);
        device.add_next(&mut output);
    }
    annotations.add_until(u64::MAX, &mut output, &snapshot);
    let (events_added, last_ns) = (output.next_seq, output.last_ns);
    let definitions = output.tree.finish(&snapshot);
    let sizes = events.iter().fold(SizeChecks::default(), |sum, device| device.size_checks + sum);
    drop(events);
    writer.finish_events();
    metadata::add_size_checks(&mut writer, sizes);
    definitions.add_to(&mut writer);
    let end = End {
        reason: EndReason::Exit,
        events: events_added,
        time_ns: last_ns,
        message: String::new(),
        counters: Counters::default(),
    };
    writer.add_block(BlockKind::END, &end.encode());
    writer.finish()
}

/// Gives events their place in the trace.
struct EventOutput<'a> {
    writer: &'a mut TraceWriter,
    tree: StackTree,
    next_seq: u64,
    last_ns: u64,
    labels: BTreeMap<TextId, CodeId>,
}

impl EventOutput<'_> {
    /// The name of a label; `None` for the empty one.
    fn label(&mut self, label: TextId, snapshot: &TorchSnapshot) -> Option<CodeId> {
        if let Some(known) = self.labels.get(&label) {
            return Some(*known);
        }
        let text = snapshot.texts.get(label).trim();
        if text.is_empty() {
            return None;
        }
        if self.labels.len() == MAX_LABELS {
            return Some(self.tree.name(OTHER_LABELS));
        }
        let name = self.tree.name(&text[..text.floor_char_boundary(MAX_LABEL_BYTES)]);
        self.labels.insert(label, name);
        Some(name)
    }

    /// Adds an event with a time; `None`: that of the event before.
    fn add(&mut self, event: Event, time_ns: Option<u64>) {
        self.last_ns = time_ns.unwrap_or(self.last_ns).max(self.last_ns);
        let thread = if event.thread == ThreadId(0) { ALLOCATOR_THREAD } else { event.thread };
        debug_assert_eq!(event.seq, NO_SEQ, "events get their number here");
        self.writer.add_event(Event { seq: self.next_seq, time_ns: self.last_ns, thread, ..event });
        self.next_seq += 1;
    }
}

/// Begins and ends of annotations, by time.
struct AnnotationEvents {
    /// Time, whether it is a begin, and the range. Ends come first at equal times.
    moments: Vec<(u64, bool, AnnotatedRange)>,
    next: usize,
}

impl AnnotationEvents {
    fn new(ranges: &[AnnotatedRange]) -> Self {
        let begins = ranges.iter().map(|range| (range.begin_ns, true, *range));
        let ends = ranges.iter().filter_map(|range| Some((range.end_ns?, false, *range)));
        let mut moments: Vec<_> = begins.chain(ends).collect();
        // Stable: of several begins at one time the outer range is first in the file.
        moments.sort_by_key(|(time_ns, is_begin, range)| {
            (*time_ns, *is_begin, if *is_begin { 0 } else { u64::MAX - range.begin_ns })
        });
        Self { moments, next: 0 }
    }

    fn add_until(&mut self, until_ns: u64, output: &mut EventOutput<'_>, snapshot: &TorchSnapshot) {
        while let Some((time_ns, is_begin, range)) =
            self.moments.get(self.next).filter(|(at, ..)| *at < until_ns || until_ns == u64::MAX)
        {
            self.next += 1;
            let name = snapshot.texts.get(range.name);
            let is_profiler_step = name.starts_with("ProfilerStep#");
            let thread = match range.lane {
                0 => ALLOCATOR_THREAD,
                lane => ThreadId(FIRST_ANNOTATION_THREAD + lane),
            };
            let event = match (is_begin, is_profiler_step) {
                (true, true) => Event { aux: [MARK_STEP, 0], ..Event::new(EventKind::MARK) },
                (false, true) => continue,
                (true, false) => {
                    let CodeId(code) = output.tree.name(name);
                    Event { aux: [u64::from(code), 0], ..Event::new(EventKind::PHASE_BEGIN) }
                }
                (false, false) => Event::new(EventKind::PHASE_END),
            };
            output.add(Event { thread, python_stack: NodeId::NONE, ..event }, Some(*time_ns));
        }
    }
}
