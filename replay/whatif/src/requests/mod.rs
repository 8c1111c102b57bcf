//! What the program asked of PyTorch's allocator, without the answers.
//!
//! A recording shows requests and answers mixed: the blocks that the program asked for, and the
//! segments that the allocator made and returned for them. With other settings the requests are the
//! same and the answers differ. Most answers are recognized by their kind. Segments that were
//! returned need more: `empty_cache()` is a request, the release before a second attempt is an
//! answer. The release of an attempt happens inside a request, so the segment that follows it has
//! its stack; or the driver has just refused memory.

mod recorded_blocks;

use std::collections::BTreeSet;

use gpumemtrace_format::EventKind;
use gpumemtrace_format::event::{FLAG_FREED_AT_ONCE, NO_POOL};
use gpumemtrace_replay::report::WalkedEvent;

use self::recorded_blocks::BlockNumbers;
pub use self::recorded_blocks::RecordedBlock;

/// The code of `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: u16 = 2;

/// A request to the allocator of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A block was requested, and the recorded run got it.
    Alloc {
        /// The block, by its number.
        block: RecordedBlock,
        /// Bytes that the program asked for.
        requested_bytes: u64,
        /// The stream it is for.
        stream: u64,
        /// The pool it is for: both halves of PyTorch's `MempoolId_t`; 0 is the default pool.
        pool: u64,
    },
    /// The program freed a block.
    Free {
        /// The block; `None` if it was allocated before the recording.
        block: Option<RecordedBlock>,
        /// False if another stream still used it.
        is_immediate: bool,
    },
    /// The last other stream that used a freed block is done with it.
    Complete {
        /// The block, by its number.
        block: RecordedBlock,
    },
    /// A private pool has no users any more: some of its segments are about to be returned.
    EndPool {
        /// The pool: both halves of PyTorch's `MempoolId_t`.
        pool: u64,
    },
    /// A private pool serves its first request, or its first after a graph was captured.
    /// `torch.cuda.graph()` empties the cache before that, and a `MemPool` does not.
    BeginPool,
    /// `empty_cache()`, or the end of a `MemPool`.
    ReleaseCached {
        /// The private pool that all returned segments belong to, if it is one.
        only_pool: Option<u64>,
    },
    /// A block was requested, and the recorded run did not get it.
    Fail {
        /// Bytes that the program asked for.
        requested_bytes: u64,
        /// The stream it was for.
        stream: u64,
        /// The pool it was for.
        pool: u64,
    },
}

/// A request, and what the recording shows of its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedRequest {
    /// What the program asked for.
    pub request: Request,
    /// Bytes of all segments after it, if the recording shows them.
    pub reserved_bytes: Option<u64>,
    /// Nanoseconds since the start of recording.
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
    /// The stack, as in [`WalkedEvent::stack`].
    pub stack: u32,
}

/// Segments that were returned to the driver, as long as it is unknown why.
#[derive(Clone, Debug)]
struct OpenRelease {
    /// The pools of these segments.
    pools: BTreeSet<u64>,
    stack: u32,
    time_ns: u64,
    step: u32,
    /// The driver refused memory right before it.
    after_refusal: bool,
}

/// Recognizes the requests of one device among the events of a run.
#[derive(Debug)]
pub struct RequestReader {
    device: u8,
    blocks: BlockNumbers,
    release: Option<OpenRelease>,
    was_refused: bool,
    /// The private pool that serves requests now; 0 if none does.
    active_pool: u64,
    /// Blocks without a known requested size and stream, which are left out.
    pub without_detail: u64,
    /// Blocks that another stream still used when they were freed.
    pub freed_in_use: u64,
    ready: Vec<TimedRequest>,
}

impl RequestReader {
    /// A reader for the device of this ordinal.
    pub fn new(device: u8) -> Self {
        Self {
            device,
            blocks: BlockNumbers::default(),
            release: None,
            was_refused: false,
            active_pool: 0,
            without_detail: 0,
            freed_in_use: 0,
            ready: Vec::new(),
        }
    }

    /// Passes an event; returns the requests that are known by it.
    pub fn on_event(&mut self, walked: &WalkedEvent<'_>) -> &[TimedRequest] {
        self.ready.clear();
        let event = walked.event;
        if event.device == self.device {
            match event.kind {
                EventKind::BLOCK_ALLOC => self.on_alloc(walked),
                EventKind::BLOCK_FREE => self.on_free(walked),
                EventKind::BLOCK_FREE_COMPLETED => {
                    if let Some(block) = self.blocks.complete(event.addr) {
                        self.push(walked, Request::Complete { block }, None);
                    }
                }
                EventKind::BLOCK_OOM => self.on_failure(walked),
                EventKind::SEGMENT_FREE | EventKind::SEGMENT_UNMAP => self.on_release(walked),
                EventKind::SEGMENT_ALLOC | EventKind::SEGMENT_MAP => self.on_new_segment(walked),
                EventKind::GRAPH_INSTANTIATE => self.active_pool = 0,
                EventKind::DEVICE_ALLOC | EventKind::PHYS_CREATE => {
                    self.was_refused |= event.result == OUT_OF_MEMORY;
                }
                _ => {}
            }
        }
        &self.ready
    }

    /// The requests that were known by the last event.
    pub fn ready(&self) -> &[TimedRequest] {
        &self.ready
    }

    /// Whether the driver refused memory for the request that is being served.
    pub fn was_refused(&self) -> bool {
        self.was_refused
    }

    /// The live blocks, the oldest first. `None` if the events so far do not tell all requests.
    pub(crate) fn live_blocks(&self) -> Option<Vec<RecordedBlock>> {
        let is_settled = self.release.is_none() && !self.was_refused && self.active_pool == 0;
        self.blocks.by_age().filter(|_| is_settled)
    }

    /// The requests that were still open when the recording ended.
    pub fn finish(&mut self) -> &[TimedRequest] {
        self.ready.clear();
        self.settle_release(false);
        &self.ready
    }

    fn on_alloc(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        // A block without a new segment: a release before it was no part of the request.
        self.settle_release(false);
        self.was_refused = false;
        let Some(detail) = event.detail else {
            self.without_detail += 1;
            return;
        };
        // PyTorch 2.1 and 2.2 report no pools.
        let pool = if detail.pool == NO_POOL { 0 } else { detail.pool };
        if pool != 0 && pool != self.active_pool {
            self.active_pool = pool;
            self.push(walked, Request::BeginPool, None);
        }
        let request = Request::Alloc {
            block: self.blocks.add(event.addr),
            requested_bytes: detail.requested_bytes,
            stream: detail.stream,
            pool,
        };
        self.push(walked, request, Some(event.aux[1]));
    }

    fn on_free(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        self.settle_release(false);
        let is_immediate = event.flags & FLAG_FREED_AT_ONCE != 0;
        self.freed_in_use += u64::from(!is_immediate && event.detail.is_some());
        let request = Request::Free { block: self.blocks.free(event.addr, is_immediate), is_immediate };
        self.push(walked, request, Some(event.aux[1]));
    }

    fn on_failure(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        self.settle_release(self.is_same_request(walked));
        self.was_refused = false;
        let (stream, pool) = event.detail.map_or((0, 0), |detail| (detail.stream, detail.pool));
        let pool = if pool == NO_POOL { 0 } else { pool };
        let requested_bytes = event.detail.map_or(event.size, |detail| detail.requested_bytes);
        self.push(walked, Request::Fail { requested_bytes, stream, pool }, Some(event.aux[1]));
    }

    fn on_release(&mut self, walked: &WalkedEvent<'_>) {
        let [_, pool] = walked.event.aux;
        let after_refusal = self.was_refused;
        let release = self.release.get_or_insert_with(|| OpenRelease {
            pools: BTreeSet::new(),
            stack: walked.stack,
            time_ns: walked.time_ns,
            step: walked.step,
            after_refusal,
        });
        release.pools.insert(if pool == NO_POOL { 0 } else { pool });
    }

    fn on_new_segment(&mut self, walked: &WalkedEvent<'_>) {
        self.settle_release(self.is_same_request(walked));
        self.was_refused = false;
    }

    /// Whether the open release and this event belong to one request for a block.
    fn is_same_request(&self, walked: &WalkedEvent<'_>) -> bool {
        self.release.as_ref().is_some_and(|release| release.after_refusal || release.stack == walked.stack)
    }

    /// Decides about the open release: a request of its own, unless it was part of another.
    fn settle_release(&mut self, is_part_of_request: bool) {
        let Some(release) = self.release.take() else { return };
        let OpenRelease { pools, stack, time_ns, step, after_refusal } = release;
        let private = pools.iter().copied().filter(|pool| *pool != 0);
        let only_pool = private.clone().next().filter(|_| pools.len() == 1);
        let mut requests: Vec<_> = private.map(|pool| Request::EndPool { pool }).collect();
        if !is_part_of_request && !after_refusal {
            requests.push(Request::ReleaseCached { only_pool });
        }
        let timed = |request| TimedRequest { request, reserved_bytes: None, time_ns, step, stack };
        self.ready.extend(requests.into_iter().map(timed));
    }

    fn push(&mut self, walked: &WalkedEvent<'_>, request: Request, reserved_bytes: Option<u64>) {
        let WalkedEvent { time_ns, step, stack, .. } = *walked;
        self.ready.push(TimedRequest { request, reserved_bytes, time_ns, step, stack });
    }
}

#[cfg(test)]
mod tests;
