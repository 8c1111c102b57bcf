//! Settings and kinds of requests under which a model is compared with every release.

use gpumemtrace_allocator_oracle::RequestFeature::{
    self, Captures, EmptyCache, EmptyPools, FallbackPools, Fraction, MemPools, NestedPools, Outside,
    PoolOptions, RecordStream, ReleasePools, Settings,
};

/// Requests of most rows.
const USUAL: &[RequestFeature] = &[RecordStream, EmptyCache, Fraction, Outside];

/// One comparison of the table.
pub(crate) struct MatrixRow {
    /// First minor version of PyTorch 2 that can run it.
    since: u32,
    /// Allocator settings, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub(crate) settings: &'static str,
    /// Kinds of requests beside the usual ones.
    more: &'static [RequestFeature],
}

/// Expandable segments come without releases of private pools, and from 2.5 on with a limit of
/// splits: else PyTorch stops at an assertion of its own (RULES.md).
static MATRIX: &[MatrixRow] = &[
    MatrixRow { since: 1, settings: "", more: &[] },
    MatrixRow { since: 1, settings: "", more: &[Settings] },
    MatrixRow { since: 1, settings: "", more: &[Captures, ReleasePools] },
    MatrixRow { since: 6, settings: "", more: &[Captures, MemPools, NestedPools, ReleasePools] },
    MatrixRow { since: 8, settings: "", more: &[MemPools, ReleasePools, EmptyPools] },
    MatrixRow { since: 8, settings: "", more: &[MemPools, PoolOptions] },
    MatrixRow { since: 1, settings: "max_split_size_mb:21", more: &[] },
    MatrixRow { since: 6, settings: "max_split_size_mb:64,max_non_split_rounding_mb:32", more: &[] },
    MatrixRow { since: 1, settings: "max_split_size_mb:100,garbage_collection_threshold:0.8", more: &[] },
    MatrixRow { since: 1, settings: "garbage_collection_threshold:0.6", more: &[] },
    MatrixRow { since: 1, settings: "roundup_power2_divisions:4", more: &[] },
    MatrixRow { since: 1, settings: "roundup_power2_divisions:[1:2,4:4,16:8,>:16]", more: &[] },
    MatrixRow { since: 1, settings: "expandable_segments:True", more: &[] },
    MatrixRow { since: 1, settings: "expandable_segments:True", more: &[Captures] },
    MatrixRow { since: 6, settings: "expandable_segments:True", more: &[Captures, MemPools, NestedPools] },
    MatrixRow { since: 1, settings: "expandable_segments:True,roundup_power2_divisions:8", more: &[] },
    MatrixRow {
        since: 5,
        settings: "expandable_segments:True,max_split_size_mb:64,garbage_collection_threshold:0.8",
        more: &[],
    },
    MatrixRow { since: 10, settings: "per_process_memory_fraction:0.5", more: &[] },
    MatrixRow { since: 8, settings: "expandable_segments:True", more: &[MemPools, PoolOptions] },
    MatrixRow { since: 11, settings: "large_segment_size_mb:40", more: &[] },
    MatrixRow { since: 11, settings: "large_segment_size_mb:40,expandable_segments:True", more: &[] },
    MatrixRow { since: 12, settings: "throw_on_cudamalloc_oom:True", more: &[] },
    MatrixRow { since: 12, settings: "throw_on_cudamalloc_oom:True,expandable_segments:True", more: &[] },
];

/// The rows that a release can run.
pub(crate) fn rows_of(minor: u32) -> impl Iterator<Item = &'static MatrixRow> {
    MATRIX.iter().filter(move |row| row.since <= minor)
}

impl MatrixRow {
    /// The kinds of requests for a release.
    pub(crate) fn features(&self, minor: u32) -> Vec<RequestFeature> {
        let mut features = [USUAL, self.more].concat();
        // In 2.12 the choice of a block depends on the order in which frees complete.
        features.retain(|feature| *feature != RecordStream || minor != 12);
        if minor < 10 {
            // Earlier pools cannot forbid splits.
            features.iter_mut().filter(|feature| **feature == PoolOptions).for_each(|it| *it = FallbackPools);
        }
        features
    }
}
