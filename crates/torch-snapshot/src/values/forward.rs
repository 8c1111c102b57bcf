//! The stacks in `forward_frames`, each made once.

use std::collections::HashMap;

use super::{TextId, TorchFrame, TorchStack};

/// What is known of `forward_frames`. Each line, list and pair of stacks is looked at once.
#[derive(Debug, Default)]
pub(super) struct ForwardStacks {
    /// The frame of each text; `None` if it is no frame.
    pub(super) frames: HashMap<TextId, Option<TorchFrame>>,
    /// The stack of each list of texts; `None` if it has no frames.
    pub(super) stacks: HashMap<u32, Option<TorchStack>>,
    /// Whether the stacks of events have frames of Python.
    pub(super) has_python: HashMap<TorchStack, bool>,
    /// The stacks of events with those of their forward calls.
    pub(super) merged: HashMap<(Option<TorchStack>, TorchStack), TorchStack>,
    /// Frames of all merged stacks. Many pairs may be made of few lists.
    pub(super) merged_frames: usize,
}
