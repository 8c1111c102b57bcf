//! Whether the program may have reacted to the memory of the card.
//!
//! PyTorch's allocator asks the driver for free memory too, while it serves a request that the
//! driver refused. Those calls have the thread and the Python stack of the refused call and of the
//! block event that ends the request. All other queries and refusals are the program's or those of
//! its libraries.

use gpumemtrace_format::event::SAMPLE_SOURCE_PROGRAM;
use gpumemtrace_format::{Event, EventKind, NodeId, ThreadId};

use crate::requests::OUT_OF_MEMORY;

/// Requests to PyTorch's allocator that the driver refused, and reactions of the program.
#[derive(Debug, Default)]
pub(crate) struct MemoryReactions {
    /// Refused calls that no block event has ended yet, by thread and innermost Python frame.
    refused: Vec<(ThreadId, NodeId)>,
    /// The program asked for free memory, or the driver refused a call of another library.
    pub(crate) were_seen: bool,
}

impl MemoryReactions {
    /// Passes an event of any device. Returns whether it ends a request that the driver refused.
    pub(crate) fn on_event(&mut self, event: &Event) -> bool {
        let caller = (event.thread, event.python_stack);
        match event.kind {
            EventKind::MEMORY_SAMPLE if event.aux[1] == SAMPLE_SOURCE_PROGRAM => {
                self.were_seen |= !self.refused.contains(&caller);
            }
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_OOM => return self.end_request(caller),
            kind if kind.is_driver_call()
                && event.result == OUT_OF_MEMORY
                && !self.refused.contains(&caller) =>
            {
                self.refused.push(caller);
            }
            _ => {}
        }
        false
    }

    fn end_request(&mut self, caller: (ThreadId, NodeId)) -> bool {
        if self.refused.is_empty() {
            return false;
        }
        let before = self.refused.len();
        self.refused.retain(|refused| *refused != caller);
        // The thread went on, so its other refused calls were not for PyTorch.
        self.were_seen |= self.refused.iter().any(|(thread, _)| *thread == caller.0);
        self.refused.len() < before
    }

    /// Refused calls for which the caller is still unknown.
    pub(crate) fn has_open_calls(&self) -> bool {
        !self.refused.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: u16 = OUT_OF_MEMORY;

    fn reactions_to(events: &[(EventKind, u16, u32, u32)]) -> (MemoryReactions, Vec<bool>) {
        let mut reactions = MemoryReactions::default();
        let ends = events.iter().map(|(kind, result, thread, python)| {
            reactions.on_event(&Event {
                result: *result,
                thread: ThreadId(*thread),
                python_stack: NodeId(*python),
                ..Event::new(*kind)
            })
        });
        let ends = ends.collect();
        (reactions, ends)
    }

    #[test]
    fn queries_inside_a_refused_request_are_of_pytorch() {
        use EventKind as Kind;
        let oom = [
            (Kind::DEVICE_ALLOC, REFUSED, 1, 4),
            (Kind::MEMORY_SAMPLE, 0, 1, 4),
            (Kind::DEVICE_ALLOC, REFUSED, 1, 4),
            (Kind::MEMORY_SAMPLE, 0, 1, 4),
            (Kind::BLOCK_OOM, 0, 1, 4),
        ];
        let (reactions, ends) = reactions_to(&oom);
        assert_eq!(ends, [false, false, false, false, true]);
        assert!(!reactions.were_seen && !reactions.has_open_calls());
    }

    #[test]
    fn other_queries_and_refusals_are_of_the_program() {
        use EventKind as Kind;
        let seen = |events: &[(EventKind, u16, u32, u32)]| reactions_to(events).0.were_seen;
        assert!(seen(&[(Kind::MEMORY_SAMPLE, 0, 1, 4)]), "no call was refused");
        assert!(seen(&[(Kind::DEVICE_ALLOC, REFUSED, 1, 4), (Kind::MEMORY_SAMPLE, 0, 1, 5)]), "another line");
        assert!(
            seen(&[(Kind::DEVICE_ALLOC, REFUSED, 1, 4), (Kind::MEMORY_SAMPLE, 0, 2, 4)]),
            "another thread"
        );
        assert!(
            seen(&[(Kind::DEVICE_ALLOC, REFUSED, 1, 4), (Kind::BLOCK_ALLOC, 0, 1, 5)]),
            "another library"
        );
        let (elsewhere, _) = reactions_to(&[(Kind::DEVICE_ALLOC, REFUSED, 2, 4), (Kind::BLOCK_OOM, 0, 1, 4)]);
        assert!(elsewhere.has_open_calls() && !elsewhere.were_seen);
        assert!(!seen(&[(Kind::DEVICE_ALLOC, 0, 1, 4), (Kind::BLOCK_ALLOC, 0, 1, 4)]), "nothing was refused");
    }
}
