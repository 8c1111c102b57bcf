//! The table of categories.

use crate::file::cell::Text;
use crate::file::table::table;

table! {
    /// The memory at the peak of a GPU, by category.
    "categories", CategoryRow, CategoryBuffer {
        /// Ordinal of the GPU.
        device: i64,
        /// The purpose of the blocks, as in `peak` of the JSON report: `parameters`, `gradients`,
        /// `activations`... `unknown` is one of them.
        category: Text,
        /// Bytes of the blocks at the peak of allocated memory. They sum to the peak.
        bytes: i64,
        /// Number of the blocks.
        blocks: i64,
    }
}
