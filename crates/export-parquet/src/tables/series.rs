//! The table of values over time.

use crate::file::cell::Text;
use crate::file::table::table;

table! {
    /// One value in one interval of time.
    "series", SeriesRow, SeriesBuffer {
        /// Ordinal of the GPU.
        device: i64,
        /// What is measured: `live` (PyTorch's `memory_allocated()`; without PyTorch, memory of the
        /// driver), `reserved`, `device` (what the driver gave to the process), `gap` (reserved and
        /// not requested), or `gap.` and a cause, such as `gap.pinned`. The causes sum to `gap`.
        series: Text,
        /// Start of the interval, in nanoseconds since the start of recording.
        start_ns: i64,
        /// End of the interval. The gap is measured at moments: `start_ns` and `end_ns` are equal.
        end_ns: i64,
        /// Lowest value in the interval.
        min_bytes: Option<i64>,
        /// Highest value in the interval.
        max_bytes: Option<i64>,
    }
}
