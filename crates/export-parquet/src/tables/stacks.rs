//! The table of stacks.

use crate::file::cell::Text;
use crate::file::frames::FrameCell;
use crate::file::table::table;

table! {
    /// A stack that an event or a block mentions.
    "stacks", StackRow, StackBuffer {
        /// Number of the stack in this trace.
        stack: i64,
        /// Number of its call site in this trace.
        site: Option<i64>,
        /// The id of its call site, which is the same in every run.
        site_id: Text,
        /// All frames in one line, outermost first: function, file and line, separated by `;`.
        folded: Text,
        /// The frames, innermost first.
        frames: Vec<FrameCell>,
    }
}
