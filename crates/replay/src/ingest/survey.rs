//! Reads all events only to learn what a trace lacks, for the commands that analyse nothing.

use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_format::{CodeId, Event, NodeId};

use super::event_reader::{OpenTrace, TraceBody, read_events};
use super::{Definitions, TraceHead};

/// Passes all events to `sink` in order. Returns what the reading found, with the number of frames
/// that have no definition, and the number of threads.
pub fn survey_events(
    open: &OpenTrace<'_>,
    head: &TraceHead,
    sink: &mut impl FnMut(&Event),
) -> Result<(TraceBody, u64), OpenError> {
    let mut threads = BTreeSet::new();
    let mut frames = FrameUses::default();
    let mut body = read_events(open, head, &mut |event| {
        threads.insert(event.thread);
        frames.add(event);
        sink(event);
        ControlFlow::Continue(())
    })?;
    body.undefined_frames = frames.count_undefined(&head.definitions);
    Ok((body, threads.len() as u64))
}

/// The innermost frames of all events.
#[derive(Debug, Default)]
struct FrameUses {
    python: HashSet<NodeId>,
    native: HashSet<NodeId>,
    /// The frames of the last event: most events repeat them.
    last: (NodeId, NodeId),
}

impl FrameUses {
    fn add(&mut self, event: &Event) {
        let stack = (event.python_stack, event.native_stack);
        if stack != self.last {
            self.python.insert(stack.0);
            self.native.insert(stack.1);
            self.last = stack;
        }
    }

    /// Number of frames that events or other frames refer to and that have no definition.
    fn count_undefined(self, definitions: &Definitions) -> u64 {
        let Definitions { codes, python, native, .. } = definitions;
        let has_code = |code: CodeId| code == CodeId::UNKNOWN || codes.contains_key(&code);
        let without_code = python.values().filter(|node| !has_code(node.code)).count();
        let mut used = self.python;
        used.extend(python.values().map(|node| node.parent));
        let without_node = used.iter().filter(|id| **id != NodeId::NONE && !python.contains_key(id)).count();
        let mut used = self.native;
        used.extend(native.values().map(|node| node.parent));
        let native = used.iter().filter(|id| **id != NodeId::NONE && !native.contains_key(id)).count();
        (without_code + without_node + native) as u64
    }
}
