//! What a snapshot consists of, independent of its encoding.
//!
//! Both readers build values from the inside out and hand each finished list and dictionary to
//! [`SnapshotBuilder`]. It recognizes them by their keys and replaces them by a number: frames by
//! the number of their stack, and an event by its place in [`EventStore`]. So a file of millions of
//! events never exists as a tree.

mod builder;
mod containers;
mod event_stacks;
mod event_store;
mod forward;
mod frame_texts;
mod keys;
mod lists;
mod releases;
mod root;
mod snapshot;
mod stacks;
mod texts;

pub(crate) use builder::SnapshotBuilder;
pub(crate) use containers::{ContainerBody, ContainerId};
pub(crate) use event_store::{EventAction, EventRun, EventStore, StoredEvent};
pub use frame_texts::BACKWARD_FRAME;
pub(crate) use frame_texts::{is_backward_mark, is_python};
pub(crate) use snapshot::{
    AllocatorSettings, Annotation, BlockRecord, EndBlockState, SegmentRecord, TorchSnapshot,
};
pub(crate) use stacks::{StackTable, TorchFrame, TorchStack};
pub(crate) use texts::{MAX_TEXT_BYTES, TextId, TextTable};

/// A value in a snapshot. Small and copied: everything large is behind a number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Value {
    /// `None`, and everything that is passed over.
    Nothing,
    /// An empty list, tuple or dictionary.
    Empty,
    Bool(bool),
    Int(i64),
    /// A number above the range of [`Self::Int`].
    Large(u64),
    Float(f64),
    Text(TextId),
    /// Two numbers: the id of a memory pool, packed.
    Pool(u64),
    Frame(TorchFrame),
    /// A list of frames.
    Stack(TorchStack),
    /// An event of the store, by number.
    Event(u32),
    /// Consecutive events in a list that is not finished.
    Run(EventRun),
    /// A list of consecutive events.
    Trace(EventRun),
    Annotation(u32),
    Block(u32),
    Segment(u32),
    /// A list of texts, by its number among them.
    TextList(u32),
    /// A list or dictionary whose part of the snapshot is finished. Its values are gone.
    Released,
    /// Any other list or dictionary.
    Container(ContainerId),
}

impl Value {
    /// The value as a number that is not negative.
    pub(crate) fn as_number(self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(number).ok(),
            Self::Large(number) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn as_text(self) -> Option<TextId> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_bool(self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The stack in `frames`; `None` for an empty list or none.
    pub(crate) fn as_stack(self) -> Option<TorchStack> {
        match self {
            Self::Stack(stack) => Some(stack),
            _ => None,
        }
    }
}
