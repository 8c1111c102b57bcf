//! The table of call sites.

use crate::file::cell::Text;
use crate::file::table::table;

table! {
    /// What one call site allocated from one allocator on one device.
    "sites", SiteRow, SiteBuffer {
        /// Number of the call site in this trace. Null if the site is unknown.
        site: Option<i64>,
        /// The id of the call site, which is the same in every run.
        site_id: Option<Text>,
        /// Path of the source file.
        file: Option<Text>,
        /// Line in the source file.
        line: Option<i64>,
        /// Qualified name of the function.
        function: Option<Text>,
        /// Identifies the text of the line within its function, so that a line is found again in
        /// runs after edits above it. Null if the text is unknown: the file was changed since the
        /// run, or may not be read.
        source_id: Option<Text>,
        /// The shared library, for a site without Python frames.
        module: Option<Text>,
        /// True if an autograd thread allocated it in the backward pass of this line.
        is_backward: bool,
        /// The allocator, as in `allocations`.
        layer: Text,
        /// Ordinal of the GPU.
        device: Option<i64>,
        /// Blocks allocated in the window.
        allocations: i64,
        /// Bytes of the blocks allocated in the window.
        allocated_bytes: i64,
        /// Blocks of this site freed in the window.
        frees: i64,
        /// Bytes of the blocks freed in the window.
        freed_bytes: i64,
        /// Live blocks when the live bytes of layer and device were highest in the window.
        peak_blocks: i64,
        /// Bytes of the blocks live at the peak.
        peak_bytes: i64,
        /// Live blocks at the end of the window.
        end_blocks: i64,
        /// Bytes of the blocks live at the end.
        end_bytes: i64,
    }
}
