//! What the program asked of PyTorch's allocator, without the answers.
//!
//! A recording shows requests and answers mixed: the blocks that the program asked for, and the
//! segments that the allocator made and returned for them. With other settings the requests are the
//! same and the answers differ. Most answers are recognized by their kind. Segments that were
//! returned need more: `empty_cache()` is a request, the release before a second attempt is an
//! answer. The release of an attempt happens inside a request, so the segment that follows it has
//! its stack; or the driver has just refused memory.
//!
//! What existed before the first recorded request is no request, but the state to begin with
//! (`start_state.rs`).

mod recorded_blocks;
mod start_state;

use std::collections::BTreeSet;

use gpumemtrace_format::EventKind;
use gpumemtrace_format::event::{FLAG_EXISTED, FLAG_FREED_AT_ONCE, NO_POOL};
use gpumemtrace_replay::report::WalkedEvent;

use self::recorded_blocks::BlockNumbers;
pub use self::recorded_blocks::RecordedBlock;
use self::start_state::StartCollector;
pub use self::start_state::StartState;
pub(crate) use self::start_state::pool_id;

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
    /// PyTorch released cached memory for it, so the driver refused some at first.
    pub was_refused: bool,
}

/// Segments that were returned to the driver, as long as it is unknown why.
#[derive(Clone, Debug)]
struct OpenRelease {
    /// The pools of these segments.
    pools: BTreeSet<u64>,
    stack: u32,
    time_ns: u64,
    step: u32,
    seq: u64,
    /// The driver refused memory right before it.
    after_refusal: bool,
}

/// Recognizes the requests of one device among the events of a run.
#[derive(Debug)]
pub struct RequestReader {
    device: u8,
    blocks: BlockNumbers,
    /// What existed before the first request, until that was seen.
    start: Option<StartCollector>,
    /// The finished state, until it is taken.
    start_state: Option<StartState>,
    /// Blocks that existed and waited for another stream.
    early_frees: Vec<TimedRequest>,
    release: Option<OpenRelease>,
    was_refused: bool,
    /// The private pool that serves requests now; 0 if none does.
    active_pool: u64,
    /// Blocks without a known requested size and stream, which are left out.
    pub without_detail: u64,
    /// Blocks that another stream still used when they were freed.
    pub freed_in_use: u64,
    /// Number of requests so far, without releases of cached memory.
    pub requests: u64,
    /// Requests that were refused at first.
    pub refused: u64,
    /// PyTorch released cached memory for the request that is being served.
    has_released: bool,
    ready: Vec<TimedRequest>,
}

impl RequestReader {
    /// A reader for the device of this ordinal.
    pub fn new(device: u8) -> Self {
        Self {
            device,
            blocks: BlockNumbers::default(),
            start: Some(StartCollector::default()),
            start_state: None,
            early_frees: Vec::new(),
            release: None,
            was_refused: false,
            active_pool: 0,
            without_detail: 0,
            freed_in_use: 0,
            requests: 0,
            refused: 0,
            has_released: false,
            ready: Vec::new(),
        }
    }

    /// Passes an event; returns the requests that are known by it.
    pub fn on_event(&mut self, walked: &WalkedEvent<'_>) -> &[TimedRequest] {
        self.ready.clear();
        let event = walked.event;
        if event.device == self.device && !self.collect_start(walked) {
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

    /// The state to begin with, once and before the first request; `None` if there is none.
    pub fn take_start(&mut self) -> Option<StartState> {
        self.start_state.take()
    }

    /// Collects what existed before the first request. False for other events.
    fn collect_start(&mut self, walked: &WalkedEvent<'_>) -> bool {
        let event = walked.event;
        if event.flags & FLAG_EXISTED == 0 || event.kind.is_driver_call() {
            self.end_start();
            return false;
        }
        let Some(start) = &mut self.start else { return false };
        match event.kind {
            EventKind::SEGMENT_ALLOC | EventKind::SEGMENT_MAP => start.add_segment(event),
            EventKind::BLOCK_ALLOC => start.add_block(event, self.blocks.add(event.addr)),
            // The block was freed, and another stream still uses it.
            EventKind::BLOCK_FREE => {
                let block = self.blocks.free(event.addr, false);
                let request = Request::Free { block, is_immediate: false };
                self.early_frees.push(Self::timed(walked, request, None));
                self.freed_in_use += 1;
            }
            _ => {}
        }
        true
    }

    fn end_start(&mut self) {
        if let Some(start) = self.start.take() {
            self.start_state = start.finish();
            self.ready.append(&mut self.early_frees);
        }
    }

    /// The requests that were known by the last event.
    pub fn ready(&self) -> &[TimedRequest] {
        &self.ready
    }

    /// Whether the driver refused memory for the request that is being served.
    pub fn was_refused(&self) -> bool {
        self.was_refused
    }

    /// The requests that are known because memory outside the allocator was requested by the event
    /// of this number: a release before it was not part of another request.
    pub fn settle_before(&mut self, seq: u64) -> &[TimedRequest] {
        self.ready.clear();
        if self.release.as_ref().is_some_and(|release| release.seq < seq) {
            self.settle_release(false);
        }
        &self.ready
    }

    /// The live blocks, the oldest first. `None` if the events so far do not tell all requests.
    pub(crate) fn live_blocks(&self) -> Option<Vec<RecordedBlock>> {
        let is_settled = self.release.is_none() && !self.was_refused && self.active_pool == 0;
        self.blocks.by_age().filter(|_| is_settled)
    }

    /// Number of live blocks.
    pub(crate) fn count_live_blocks(&self) -> usize {
        self.blocks.count_live()
    }

    /// The requests that were still open when the recording ended.
    pub fn finish(&mut self) -> &[TimedRequest] {
        self.ready.clear();
        self.end_start();
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
            seq: walked.event.seq,
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
        let OpenRelease { pools, stack, time_ns, step, after_refusal, .. } = release;
        let private = pools.iter().copied().filter(|pool| *pool != 0);
        let only_pool = private.clone().next().filter(|_| pools.len() == 1);
        let mut requests: Vec<_> = private.map(|pool| Request::EndPool { pool }).collect();
        if !is_part_of_request && !after_refusal {
            requests.push(Request::ReleaseCached { only_pool });
        }
        self.has_released = is_part_of_request;
        let timed = |request| TimedRequest {
            request,
            reserved_bytes: None,
            time_ns,
            step,
            stack,
            was_refused: false,
        };
        self.ready.extend(requests.into_iter().map(timed));
    }

    fn push(&mut self, walked: &WalkedEvent<'_>, request: Request, reserved_bytes: Option<u64>) {
        self.requests += 1;
        let was_refused = matches!(request, Request::Alloc { .. } | Request::Fail { .. })
            && std::mem::take(&mut self.has_released);
        self.refused += u64::from(was_refused || matches!(request, Request::Fail { .. }));
        self.ready.push(TimedRequest { was_refused, ..Self::timed(walked, request, reserved_bytes) });
    }

    fn timed(walked: &WalkedEvent<'_>, request: Request, reserved_bytes: Option<u64>) -> TimedRequest {
        let WalkedEvent { time_ns, step, stack, .. } = *walked;
        TimedRequest { request, reserved_bytes, time_ns, step, stack, was_refused: false }
    }
}

#[cfg(test)]
mod tests;
