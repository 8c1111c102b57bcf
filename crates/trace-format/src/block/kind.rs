//! The kinds of blocks in a trace.

/// What a block holds. A plain number: a reader skips and counts a kind that it does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockKind(pub u8);

impl BlockKind {
    /// Metadata of the recording: [`crate::meta::Meta`].
    pub const META: Self = Self(1);
    /// Events as columns: [`crate::event_block`].
    pub const EVENTS: Self = Self(2);
    /// Definitions of code objects: [`crate::definitions::encode_codes`].
    pub const CODES: Self = Self(3);
    /// Definitions of Python frames: [`crate::definitions::encode_py_nodes`].
    pub const PY_NODES: Self = Self(4);
    /// Definitions of native frames: [`crate::definitions::encode_native_nodes`].
    pub const NATIVE_NODES: Self = Self(5);
    /// Modules loaded by the process: [`crate::definitions::encode_modules`].
    pub const MODULES: Self = Self(6);
    /// [`crate::meta::End`]: the last block that the program wrote, apart from a TAIL. `gpumemtrace
    /// run` may append metadata.
    pub const END: Self = Self(7);
    /// Names of native addresses, put in front of everything else by `gpumemtrace symbolize`:
    /// [`crate::definitions::encode_names`].
    pub const NAMES: Self = Self(8);
    /// Links of the Python frames in the block before: [`crate::definitions::encode_frame_links`].
    pub const FRAME_LINKS: Self = Self(9);
    /// Summary of everything before it: [`crate::index::Index`].
    pub const INDEX: Self = Self(10);
    /// The last block of a finished trace: [`crate::index::TraceTail`].
    pub const TAIL: Self = Self(11);

    /// True for blocks of events.
    pub(crate) fn is_events(self) -> bool {
        self == Self::EVENTS
    }

    /// True for blocks that define what ids stand for.
    pub(crate) fn is_definitions(self) -> bool {
        (Self::CODES.0..=Self::MODULES.0).contains(&self.0) || matches!(self, Self::NAMES | Self::FRAME_LINKS)
    }
}
