//! Each distinct frame and stack once.

use std::collections::HashMap;
use std::rc::Rc;

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
    stack_ids: HashMap<Rc<[u32]>, TorchStack>,
    stacks: Vec<Rc<[u32]>>,
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
        (!self.scratch.is_empty()).then(|| self.intern_scratch())
    }

    fn intern_scratch(&mut self) -> TorchStack {
        if let Some(known) = self.stack_ids.get(self.scratch.as_slice()) {
            return *known;
        }
        let id = TorchStack(self.stacks.len() as u32);
        let frames = Rc::<[u32]>::from(self.scratch.as_slice());
        self.stacks.push(frames.clone());
        self.stack_ids.insert(frames, id);
        id
    }

    /// The frames of a stack, innermost first.
    pub(crate) fn frames(&self, stack: TorchStack) -> impl DoubleEndedIterator<Item = TorchFrame> + '_ {
        self.stacks
            .get(stack.0 as usize)
            .into_iter()
            .flat_map(|frames| frames.iter().map(|id| TorchFrame(*id)))
    }

    pub(crate) fn frame(&self, id: TorchFrame) -> SnapshotFrame {
        self.frames[id.0 as usize]
    }
}
