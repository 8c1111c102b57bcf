//! What the free pieces of a moment are good for: which of the sizes that the run asks for would find room without the driver.
//!
//! Definition: a request fits into a piece of segments that serve its stream, its pool and small or large blocks, as often as its size goes into the
//! piece. PyTorch's `max_split_size_mb` is not looked at.

use super::{Gap, PoolKey};
use crate::state::request_histogram::{BlockRequest, RequestHistogram};

/// Most sizes listed.
const MAX_SIZES: usize = 8;

/// A size that the run asks for, and what is there for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FitForSize {
    /// What is asked for.
    pub request: BlockRequest,
    /// How often in the run.
    pub times: u64,
    /// Free in segments that serve it.
    pub free: u64,
    /// How many at once would find room.
    pub fit: u64,
}

/// The sizes for which most bytes are asked, with what is free for them at this moment.
pub(crate) fn fit_for_sizes(gap: &Gap, requests: &RequestHistogram) -> Vec<FitForSize> {
    if gap.groups.is_empty() {
        return Vec::new();
    }
    let of = |(request, times): (BlockRequest, u64)| {
        let pool: PoolKey = request.pool_key();
        let pieces = || gap.pieces.iter().filter(|piece| piece.pool == Some(pool)).map(|piece| piece.bytes);
        let fit = |piece: u64| piece.checked_div(request.bytes).unwrap_or(0);
        FitForSize {
            request,
            times,
            free: crate::util::block_totals::saturating_sum(pieces()),
            fit: crate::util::block_totals::saturating_sum(pieces().map(fit)),
        }
    };
    let asked = requests.list().into_iter().filter(|(request, _)| request.bytes > 0);
    asked.take(MAX_SIZES).map(of).collect()
}
