//! Each distinct frame and stack once.

use std::collections::HashMap;

use super::lists::ListTable;
use super::{TextId, Value};

/// Frames of a stack that are kept, innermost first.
const MAX_FRAMES: usize = 4096;

/// A frame of a [`StackTable`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TorchFrame(pub(crate) u32);

/// A stack of a [`StackTable`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TorchStack(pub(crate) u32);

/// A frame as PyTorch reports it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SnapshotFrame {
    pub(crate) file: TextId,
    pub(crate) name: TextId,
    pub(crate) line: u32,
}

/// All stacks of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct StackTable {
    frame_ids: HashMap<SnapshotFrame, TorchFrame>,
    frames: Vec<SnapshotFrame>,
    stacks: ListTable,
    scratch: Vec<u32>,
}

impl StackTable {
    pub(crate) fn intern_frame(&mut self, frame: SnapshotFrame) -> TorchFrame {
        let next = TorchFrame(self.frames.len() as u32);
        let id = *self.frame_ids.entry(frame).or_insert(next);
        if id == next {
            self.frames.push(frame);
        }
        id
    }

    /// The stack with these frames, innermost first; `None` if there is none, or another value.
    pub(crate) fn intern_values(&mut self, items: &[Value]) -> Option<TorchStack> {
        self.scratch.clear();
        for item in items {
            let Value::Frame(frame) = item else { return None };
            self.scratch.push(frame.0);
        }
        self.scratch.truncate(MAX_FRAMES);
        (!self.scratch.is_empty()).then(|| TorchStack(self.stacks.intern(&self.scratch)))
    }

    /// True if a stack was left out because there are too many frames.
    pub(super) fn is_full(&self) -> bool {
        self.stacks.is_full
    }

    /// The frames of a stack, innermost first.
    pub(crate) fn frames(&self, stack: TorchStack) -> impl DoubleEndedIterator<Item = TorchFrame> + '_ {
        self.stacks.get(stack.0).iter().map(|id| TorchFrame(*id))
    }

    /// Each distinct frame, in the order of the file.
    pub(crate) fn all_frames(&self) -> impl Iterator<Item = SnapshotFrame> + '_ {
        self.frames.iter().copied()
    }

    pub(crate) fn frame(&self, id: TorchFrame) -> SnapshotFrame {
        self.frames[id.0 as usize]
    }
}
