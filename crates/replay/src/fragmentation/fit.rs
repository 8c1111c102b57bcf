//! Counts how many allocations of common sizes fit without a new cudaMalloc.
//!
//! A request fits into the free pieces of its own pool, once for each time that its size goes
//! into a piece. PyTorch's `max_split_size_mb` is ignored. The cost is O(sizes x free pieces).
//! `fragmentation::tests::size_fits_as_often_as_it_divides_the_pieces_of_its_pool` has an
//! example.

use super::Gap;
use crate::state::pool_key::PoolKey;
use crate::state::request_histogram::{BlockRequest, RequestHistogram};

/// Sizes listed per moment, by requested bytes.
const MAX_SIZES: usize = 8;

/// A size that the run requests, with the free memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FitForSize {
    /// Size and pool of the request.
    pub request: BlockRequest,
    /// How often the run requested it.
    pub times: u64,
    /// Free bytes in its pool.
    pub free: u64,
    /// How many such blocks fit at the same time.
    pub fit: u64,
}

/// The sizes for which the run requests most bytes. Empty where segments are unknown.
pub(crate) fn fit_for_sizes(gap: &Gap, requests: &RequestHistogram) -> Vec<FitForSize> {
    if gap.groups.is_empty() {
        return Vec::new();
    }
    let fit_for_size = |(request, times): (BlockRequest, u64)| {
        let pool: PoolKey = request.pool_key();
        let pieces = || gap.pieces.iter().filter(|piece| piece.pool == Some(pool)).map(|piece| piece.bytes);
        let count_in_piece = |piece: u64| piece.checked_div(request.bytes).unwrap_or(0);
        FitForSize {
            request,
            times,
            free: crate::util::block_totals::saturating_sum(pieces()),
            fit: crate::util::block_totals::saturating_sum(pieces().map(count_in_piece)),
        }
    };
    let requested = requests.list().into_iter().filter(|(request, _)| request.bytes > 0);
    requested.take(MAX_SIZES).map(fit_for_size).collect()
}
