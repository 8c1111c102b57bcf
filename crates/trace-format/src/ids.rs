//! The identifiers that events and definitions share.

/// A node of a stack tree: one frame under its caller. Python and native frames are two separate
/// trees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct NodeId(pub u32);

impl NodeId {
    /// No frame: the parent of an outermost frame, and the stack of an event that has none.
    pub const NONE: Self = Self(0);
}

/// A Python code object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct CodeId(pub u32);

impl CodeId {
    /// A frame with an unreadable code object.
    pub const UNKNOWN: Self = Self(0);
}

/// Thread id of the operating system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ThreadId(pub u32);

/// The function that produced an event: an index into the `apis` list of the metadata. 0 is no
/// function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ApiId(pub u8);
