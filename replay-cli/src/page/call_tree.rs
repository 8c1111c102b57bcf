//! The tree of calls: stacks that share callers share nodes.

use std::collections::HashMap;

use gpumemtrace_replay::report::{FrameKind, Site, StackFrame};

use super::data::FrameData;

/// Node 0 is the root, which has no frame.
#[derive(Debug, Default)]
pub(super) struct CallTree {
    frames: HashMap<FrameData, usize>,
    nodes: HashMap<(u64, usize), u64>,
    /// Frames in the order of their numbers.
    pub(super) all_frames: Vec<FrameData>,
    /// Parents of nodes 1, 2, 3...
    pub(super) parents: Vec<u64>,
    /// Frames of nodes 1, 2, 3...
    pub(super) node_frames: Vec<u64>,
}

impl CallTree {
    /// Adds a stack and returns its innermost node.
    pub(super) fn add_stack(&mut self, site: &Site) -> u64 {
        site.stack.iter().rev().fold(0, |parent, frame| self.add_node(parent, frame_data(frame)))
    }

    fn add_node(&mut self, parent: u64, frame: FrameData) -> u64 {
        let next_frame = self.all_frames.len();
        let frame = *self.frames.entry(frame).or_insert_with_key(|frame| {
            self.all_frames.push(frame.clone());
            next_frame
        });
        let next_node = self.parents.len() as u64 + 1;
        let node = *self.nodes.entry((parent, frame)).or_insert(next_node);
        if node == next_node {
            self.parents.push(parent);
            self.node_frames.push(frame as u64);
        }
        node
    }
}

fn frame_data(frame: &StackFrame) -> FrameData {
    let is_marker = frame.is_backward();
    FrameData {
        kind: match frame.kind {
            _ if is_marker => "marker",
            FrameKind::Python => "python",
            FrameKind::Native => "native",
        },
        function: frame.function.clone(),
        file: frame.file.clone().or_else(|| frame.module.clone()),
        line: frame.line,
        is_user: frame.is_own,
    }
}
