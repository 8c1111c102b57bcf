//! The blocks of a leak, for the search of references that hold them.

use serde::Serialize;

/// The blocks of a leak, and the line it is reported under.
#[derive(Clone, Debug, Serialize)]
pub struct BlocksOfLeak {
    /// Ordinal of the device.
    pub device: u32,
    /// Source file of the line, if it is known.
    pub file: Option<String>,
    /// Line number, if it is known.
    pub line: Option<u32>,
    /// Function of the line, if it is known.
    pub function: Option<String>,
    /// Blocks by the stack that allocated them.
    pub stacks: Vec<BlocksOfStack>,
}

/// The leaked blocks that one stack allocated.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BlocksOfStack {
    /// Number of blocks, listed or not.
    pub blocks: u64,
    /// Their sum; saturates in a damaged trace.
    pub bytes: u64,
    /// Address and bytes of the listed blocks, oldest first.
    pub listed: Vec<(u64, u64)>,
}
