//! The limit on the frames of all stacks that a report or an export has.
//!
//! Stacks share their outer frames in a trace, but not in a report: 10,000 call sites below one
//! chain of 4,000 frames are 58 KB of trace, and 40 million frames. So stacks are complete until
//! the limit, and the later ones end in a frame that says how many are left out.

use std::cell::Cell;

use gpumemtrace_format::FrameLink;

use crate::report::{FrameKind, StackFrame};

/// Bytes that the frames of any trace may have.
const MIN_BYTES: u64 = 64 << 20;
/// Bytes for each node of the trace's stack trees in addition. Stacks of programs are below 100
/// frames deep, and most have nodes of their own.
const BYTES_PER_NODE: u64 = 48 << 10;
/// Limit on what nodes add.
const MAX_BYTES_OF_NODES: u64 = 4 << 30;

/// Counts the bytes of frames.
#[derive(Debug, Default)]
pub(crate) struct FrameBudget {
    used_bytes: Cell<u64>,
}

impl FrameBudget {
    /// Stands for a stack of `frames` frames if the budget of a trace with `nodes` nodes is used
    /// up.
    pub(crate) fn replace(&self, frames: usize, nodes: usize) -> Option<Vec<StackFrame>> {
        let is_used_up = frames > 0 && self.used_bytes.get() > max_bytes(nodes);
        is_used_up.then(|| vec![omitted_frames(frames)])
    }

    /// The frames of a stack, innermost first, as far as the budget of a trace with so many nodes
    /// reaches.
    pub(crate) fn cut(&self, mut frames: Vec<StackFrame>, nodes: usize) -> Vec<StackFrame> {
        let max_bytes = max_bytes(nodes);
        let mut used_bytes = self.used_bytes.get();
        let fits = |frame: &&StackFrame| {
            used_bytes = used_bytes.saturating_add(bytes_of(frame));
            used_bytes <= max_bytes
        };
        let kept = frames.iter().take_while(fits).count();
        let omitted = frames.len() - kept;
        self.used_bytes.set(used_bytes);
        if omitted > 0 {
            frames.truncate(kept);
            frames.push(omitted_frames(omitted));
            frames.shrink_to_fit();
        }
        frames
    }
}

fn max_bytes(nodes: usize) -> u64 {
    MIN_BYTES + (nodes as u64).saturating_mul(BYTES_PER_NODE).min(MAX_BYTES_OF_NODES)
}

fn bytes_of(frame: &StackFrame) -> u64 {
    let texts = [&frame.file, &frame.function, &frame.module];
    let text_bytes: usize = texts.into_iter().flatten().map(String::len).sum();
    (size_of::<StackFrame>() + text_bytes) as u64
}

/// Stands for the frames that are left out.
fn omitted_frames(count: usize) -> StackFrame {
    StackFrame {
        kind: FrameKind::Python,
        file: None,
        line: None,
        function: Some(format!("<{count} more frames>")),
        module: None,
        offset: None,
        is_inlined: false,
        is_own: false,
        address: 0,
        link: FrameLink::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_complete_up_to_the_budget() {
        let budget = FrameBudget::default();
        let stack: Vec<StackFrame> = std::iter::repeat_n(omitted_frames(1), 4000).collect();
        let stacks: Vec<_> = (0..500).map(|_| budget.cut(stack.clone(), 1000)).collect();
        let complete = stacks.iter().filter(|cut| cut.len() == 4000).count();
        let bytes: u64 = stacks.iter().flatten().map(bytes_of).sum();
        assert!(complete > 50 && complete < 500, "{complete}");
        assert!(bytes < max_bytes(1000) + (1 << 20), "{bytes}");
        assert_eq!(stacks[499][0].function.as_deref(), Some("<4000 more frames>"));
    }
}
