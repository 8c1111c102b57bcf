//! Attributes events of autograd's threads to the `backward()` call that waits for them.
//!
//! Autograd computes gradients on its own threads, which have no Python frames. Where the recorder
//! knows the forward line of the node being computed, the event carries that line's stack. Events
//! of gradient accumulation and of library hooks have no stack.
//!
//! A thread that waits in `backward()` makes no events, but it usually makes one right before,
//! under that call, for the initial gradient. From then until its next event outside the call,
//! events without a stack are attributed to the call. If two threads wait in such calls at once,
//! the attribution is ambiguous and the events keep no stack. The tests below cover these cases.

use gpumemtrace_format::{Event, NodeId, ThreadId};

use crate::callsite::symbols::{AutogradRole, StackInfo, StackSymbols};
use crate::report::TraceNote;
use crate::util::ids::StackId;

/// Limit of remembered `backward()` calls.
const MAX_CALLS: usize = 16;

/// Tracks the threads that wait in `backward()`.
#[derive(Clone, Debug, Default)]
pub(crate) struct AutogradTracker {
    /// Waiting threads, each with the frame of its call.
    waiting: Vec<(ThreadId, NodeId)>,
    /// The first distinct frames of `backward()` calls.
    pub calls: Vec<NodeId>,
    /// Number of events attributed to a `backward()` call.
    pub events_at_calls: u64,
    /// Number of events attributed to a forward line.
    pub events_at_forward_lines: u64,
}

impl AutogradTracker {
    /// The stack of an event. Its Python frames are the event's own, or those of the `backward()`
    /// call to which the event is attributed. Call it once per event, in order.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Returning the result in memory would cost more than the work.
    pub(crate) fn resolve_stack(
        &mut self,
        event: &Event,
        symbols: &mut StackSymbols,
    ) -> (StackId, StackInfo) {
        let python = match event.python_stack {
            NodeId::NONE => self.attribute_to_call(event.thread),
            python => python,
        };
        let stack = symbols.stack(python, event.native_stack);
        let info = symbols.stack_info(stack);
        if event.python_stack != NodeId::NONE {
            match info.autograd {
                AutogradRole::None => self.set_call(event.thread, NodeId::NONE),
                AutogradRole::Runs(call) => self.set_call(event.thread, call),
                AutogradRole::WorksFor => self.events_at_forward_lines += 1,
            }
        }
        (stack, info)
    }

    /// The only waiting call of another thread; `NONE` if there is none or more than one.
    fn attribute_to_call(&mut self, worker: ThreadId) -> NodeId {
        match *self.waiting {
            [(thread, call)] if thread != worker => {
                self.events_at_calls += 1;
                call
            }
            _ => NodeId::NONE,
        }
    }

    /// Notes for the report: how many of all events are shown at forward lines or calls.
    pub(crate) fn notes(&self, all_events: u64) -> Vec<TraceNote> {
        let mut notes = Vec::new();
        if self.events_at_forward_lines > 0 {
            let events = self.events_at_forward_lines;
            notes.push(TraceNote::BackwardAtForwardLine { events, all_events });
        }
        if self.events_at_calls > 0 {
            notes.push(TraceNote::BackwardAtCall { events: self.events_at_calls, all_events });
        }
        notes
    }

    /// Sets the `backward()` call that `thread` is in; `NONE` for none.
    #[inline]
    fn set_call(&mut self, thread: ThreadId, call: NodeId) {
        // One comparison in the most common case: no thread waits, and this event is in no call.
        if call == NodeId::NONE && self.waiting.is_empty() {
            return;
        }
        self.enter_or_leave(thread, call);
    }

    fn enter_or_leave(&mut self, thread: ThreadId, call: NodeId) {
        self.waiting.retain(|(waiting, _)| *waiting != thread);
        if call != NodeId::NONE {
            self.waiting.push((thread, call));
            if self.calls.len() < MAX_CALLS && !self.calls.contains(&call) {
                self.calls.push(call);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callsite::code_origin::UserCodePaths;
    use crate::ingest::definitions::Definitions;
    use gpumemtrace_format::{CodeDef, CodeId, EventKind, FrameLink, PyNode};

    const AUTOGRAD: &str = "/v/lib/python3.12/site-packages/torch/autograd/__init__.py";

    /// Node 1 is the user's line, 2 the `backward` that it calls, and 3 a callee of 2. Node 4 is
    /// the stack of an autograd thread that computes a node of line 1.
    fn symbols() -> StackSymbols {
        let code = |id: u32, file: &str, name: &str| CodeDef {
            id: CodeId(id),
            file: file.to_owned(),
            name: name.to_owned(),
            ..CodeDef::default()
        };
        let node = |id: u32| PyNode {
            id: NodeId(id),
            parent: NodeId(id - 1),
            code: CodeId(id),
            offset_bytes: 0,
            link: FrameLink::C,
        };
        let codes =
            [code(1, "train.py", "main"), code(2, AUTOGRAD, "backward"), code(3, AUTOGRAD, "_make_grads")];
        let mut definitions = Definitions::default();
        definitions.codes.extend(codes.map(|code| (code.id, code)));
        let backward =
            PyNode { parent: NodeId(1), code: CodeId::UNKNOWN, link: FrameLink::Backward, ..node(4) };
        definitions.python.extend([node(1), node(2), node(3), backward].map(|node| (node.id, node)));
        StackSymbols::new(definitions, UserCodePaths::default())
    }

    fn event(thread: u32, node: u32) -> Event {
        let kind = EventKind::BLOCK_ALLOC;
        Event { thread: ThreadId(thread), python_stack: NodeId(node), ..Event::new(kind) }
    }

    fn stacks(events: &[(u32, u32)]) -> Vec<u32> {
        let (mut symbols, mut autograd) = (symbols(), AutogradTracker::default());
        let mut resolve = |event| autograd.resolve_stack(&event, &mut symbols).1.python.0;
        events.iter().map(|(thread, node)| resolve(event(*thread, *node))).collect()
    }

    #[test]
    fn events_without_stack_are_attributed_to_the_waiting_call() {
        assert_eq!(
            stacks(&[(9, 0), (1, 1), (9, 0), (1, 3), (9, 0), (9, 0), (1, 1), (9, 0)]),
            [0, 1, 0, 3, 2, 2, 1, 0]
        );
    }

    #[test]
    fn event_with_forward_line_keeps_it_and_ends_no_call() {
        let (mut symbols, mut autograd) = (symbols(), AutogradTracker::default());
        let stacks = [(1, 3), (9, 4), (1, 4), (9, 0)]
            .map(|(thread, node)| autograd.resolve_stack(&event(thread, node), &mut symbols).1.python.0);
        assert_eq!(stacks, [3, 4, 4, 2]);
        assert_eq!((autograd.events_at_forward_lines, autograd.events_at_calls), (2, 1));
        let own = symbols.own_user_site(NodeId(4)).unwrap();
        let site = symbols.site(own, None);
        assert_eq!((site.file.as_deref(), site.is_backward), (Some("train.py"), true));
    }

    #[test]
    fn two_waiting_calls_attribute_nothing() {
        assert_eq!(stacks(&[(1, 3), (2, 3), (9, 0), (2, 1), (9, 0)]), [3, 3, 0, 1, 2]);
    }

    #[test]
    fn thread_is_not_attributed_to_its_own_call() {
        assert_eq!(stacks(&[(1, 3), (1, 0)]), [3, 0]);
    }
}
