//! Whose call a backward thread works for.
//!
//! Constraint: autograd computes gradients on threads of its own, which have no Python frames.
//! Mostly the recorder knows which line of the forward pass made the node that is being computed,
//! and the event has that line's stack. The rest (gradients that are only accumulated, hooks of
//! libraries) has none. Consequence: while a thread sits inside of `backward()` it makes no event,
//! but right before, under that call, it usually makes one (the gradient to begin with). From then
//! until its next event outside of the call, events without a stack belong to that call: they are
//! shown at the line that made it. If two threads are inside of such calls at once, nobody can
//! tell, and nothing is guessed.

use gpumemtrace_format::{Event, NodeId, ThreadId};

use crate::callsite::symbols::{AutogradRole, StackId, StackInfo, StackSymbols};
use crate::report::TraceNote;

/// Most calls that are remembered.
const MAX_CALLS: usize = 16;

/// Follows who is inside of a `backward()`.
#[derive(Clone, Debug, Default)]
pub(crate) struct AutogradTracker {
    /// Threads inside, each with the frame of its call.
    inside: Vec<(ThreadId, NodeId)>,
    /// The different frames of such calls, the first ones.
    pub calls: Vec<NodeId>,
    /// Events shown at the line of a call.
    pub at_calls: u64,
    /// Events shown at the line of the forward pass.
    pub at_lines: u64,
}

impl AutogradTracker {
    /// The stack that an event belongs to, and what is known of it. Its Python frames are its own,
    /// or those of the call it works for.
    #[inline(always)]
    #[allow(clippy::inline_always)] // What comes back in memory costs more than all that is done here.
    pub(crate) fn stack_of(&mut self, event: &Event, symbols: &mut StackSymbols) -> (StackId, StackInfo) {
        let python = match event.python_stack {
            NodeId::NONE => self.call_for(event.thread),
            python => python,
        };
        let stack = symbols.stack(python, event.native_stack);
        let facts = symbols.stack_info(stack);
        if event.python_stack != NodeId::NONE {
            match facts.autograd {
                AutogradRole::None => self.note(event.thread, NodeId::NONE),
                AutogradRole::Runs(call) => self.note(event.thread, call),
                AutogradRole::WorksFor => self.at_lines += 1,
            }
        }
        (stack, facts)
    }

    /// The call that a thread without a Python stack works for.
    fn call_for(&mut self, worker: ThreadId) -> NodeId {
        match *self.inside {
            [(thread, call)] if thread != worker => {
                self.at_calls += 1;
                call
            }
            _ => NodeId::NONE,
        }
    }

    /// How events of autograd threads are attributed, of `all_events`.
    pub(crate) fn notes(&self, all_events: u64) -> Vec<TraceNote> {
        let mut notes = Vec::new();
        if self.at_lines > 0 {
            notes.push(TraceNote::BackwardAtForwardLine { events: self.at_lines, all_events });
        }
        if self.at_calls > 0 {
            notes.push(TraceNote::BackwardAtCall { events: self.at_calls, all_events });
        }
        notes
    }

    #[inline]
    fn note(&mut self, thread: ThreadId, call: NodeId) {
        // One comparison for the most common case: nobody is inside, and this is no such call.
        if call == NodeId::NONE && self.inside.is_empty() {
            return;
        }
        self.enter_or_leave(thread, call);
    }

    fn enter_or_leave(&mut self, thread: ThreadId, call: NodeId) {
        self.inside.retain(|(inside, _)| *inside != thread);
        if call != NodeId::NONE {
            self.inside.push((thread, call));
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

    /// Node 1: the user's line; 2: `backward` that it calls; 3: what that calls; 4: a thread that
    /// works for line 1.
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
        let (mut symbols, mut backward) = (symbols(), AutogradTracker::default());
        let mut stack_of = |event| backward.stack_of(&event, &mut symbols).1.python.0;
        events.iter().map(|(thread, node)| stack_of(event(*thread, *node))).collect()
    }

    #[test]
    fn threads_without_frames_work_for_the_call_that_waits() {
        assert_eq!(
            stacks(&[(9, 0), (1, 1), (9, 0), (1, 3), (9, 0), (9, 0), (1, 1), (9, 0)]),
            [0, 1, 0, 3, 2, 2, 1, 0]
        );
    }

    #[test]
    fn what_is_known_to_work_for_a_line_keeps_it_and_ends_no_call() {
        let (mut symbols, mut backward) = (symbols(), AutogradTracker::default());
        let stacks = [(1, 3), (9, 4), (1, 4), (9, 0)]
            .map(|(thread, node)| backward.stack_of(&event(thread, node), &mut symbols).1.python.0);
        assert_eq!(stacks, [3, 4, 4, 2]);
        assert_eq!((backward.at_lines, backward.at_calls), (2, 1));
        let own = symbols.own_user_site(NodeId(4)).unwrap();
        let site = symbols.site(own, None);
        assert_eq!((site.file.as_deref(), site.is_backward), (Some("train.py"), true));
    }

    #[test]
    fn of_two_calls_at_once_none_is_chosen() {
        assert_eq!(stacks(&[(1, 3), (2, 3), (9, 0), (2, 1), (9, 0)]), [3, 3, 0, 1, 2]);
    }

    #[test]
    fn a_thread_does_not_work_for_its_own_call() {
        assert_eq!(stacks(&[(1, 3), (1, 0)]), [3, 0]);
    }
}
