//! One run of the recorded requests under other settings, rules and capacity.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use gpumemtrace_caching_allocator::{
    CachingAllocator, FreeTicket, ProgramBlock, Rules, Settings, SettingsBeside, UnusedBytes,
};
use gpumemtrace_replay::report::ReservedCurve;

use crate::answer::FailedWhat;
use crate::device::{CallTotal, PredictedDevice};
use crate::outside_memory::{LibraryCall, OutsideMemory};
use crate::requests::{RecordedBlock, Request, StartState, TimedRequest, pool_id};
use crate::reserved_curve::CurveCollector;

/// A request that gets no memory, though the recorded run got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PredictedFailure {
    pub(crate) what: FailedWhat,
    pub(crate) request_bytes: u64,
    pub(crate) time_ns: u64,
    pub(crate) step: u32,
    pub(crate) stack: u32,
}

/// Why a prediction went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PredictionStop {
    /// A request gets no memory, though the recorded run got it.
    Failed(PredictedFailure),
    /// A request gets memory, though the recorded run did not. What the program would have done
    /// with it is unknown.
    Survived,
}

/// One thing that a prediction takes from the recording.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PredictionInput {
    /// The program asked the allocator for something.
    Request(TimedRequest),
    /// The recorded run got a segment: address and bytes.
    RecordedSegment(u64, u64),
    /// From here on, this is outside PyTorch.
    Outside(OutsideMemory),
}

/// Which run a prediction is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PredictedRun {
    /// The recorded run, with its own settings and card.
    Recorded,
    /// A run that differs from it.
    Other,
}

/// Another run with settings that have made no difference so far, so that one prediction stands for
/// both.
#[derive(Debug)]
pub(crate) struct Follower {
    /// Its place among the rows.
    pub(crate) row: usize,
    pub(crate) settings: SettingsBeside,
}

/// The state of one prediction.
#[derive(Debug)]
pub(crate) struct Prediction {
    allocator: CachingAllocator<PredictedDevice>,
    /// The blocks here, by the numbers of the recorded ones; `None` for those that are not live.
    blocks: Vec<Option<ProgramBlock>>,
    /// Freed blocks that wait for a stream in the recording. Here they may be free already.
    pending: HashMap<RecordedBlock, FreeTicket>,
    pub(crate) subject: PredictedRun,
    /// How often each private pool was made active.
    pool_uses: HashMap<u64, u32>,
    pub(crate) stop: Option<PredictionStop>,
    /// The first failure, also one that the recorded run had.
    pub(crate) first_failure: Option<PredictedFailure>,
    /// Bytes of segments, here and in the recording, at the first request where they differ.
    pub(crate) first_difference: Option<(u64, u64)>,
    /// Frees of blocks that were allocated before the recording.
    pub(crate) unknown_frees: u64,
    /// The most bytes of segments so far, after a request.
    pub(crate) peak_reserved_bytes: u64,
    curve: CurveCollector,
    /// What the program did not use of them.
    pub(crate) unused_at_peak: UnusedBytes,
    /// The first attempt at a request for a private pool failed, and the release then treats the
    /// capture of a graph unlike a `MemPool`.
    pub(crate) was_pool_refused: bool,
    /// The release retries requests for a `MemPool`.
    retries_in_pools: bool,
    /// Its states at the ends of equal steps, as hashes.
    states: Vec<u64>,
    /// Segments may have been returned here that the recorded run did not have.
    pub(crate) has_unknown_release: bool,
    /// Runs that it stands for. They are not the recorded one.
    pub(crate) followers: Vec<Follower>,
    /// Former followers with their rows, which made a difference.
    pub(crate) parted: Vec<(usize, Prediction)>,
}

impl Prediction {
    pub(crate) fn new(device: PredictedDevice, settings: Settings, rules: Rules) -> Self {
        Self {
            allocator: CachingAllocator::new(device, settings, rules),
            blocks: Vec::new(),
            pending: HashMap::new(),
            subject: PredictedRun::Other,
            pool_uses: HashMap::new(),
            stop: None,
            first_failure: None,
            first_difference: None,
            unknown_frees: 0,
            peak_reserved_bytes: 0,
            curve: CurveCollector::default(),
            unused_at_peak: UnusedBytes::default(),
            has_unknown_release: false,
            states: Vec::new(),
            was_pool_refused: false,
            retries_in_pools: rules.pools_allow_release,
            followers: Vec::new(),
            parted: Vec::new(),
        }
    }

    /// A prediction that goes on from here by itself.
    fn fork(&self, settings: &SettingsBeside) -> Self {
        let Some(allocator) = self.allocator.fork(settings) else {
            unreachable!("a private pool is active only during a request")
        };
        Self {
            allocator,
            blocks: self.blocks.clone(),
            pending: self.pending.clone(),
            subject: PredictedRun::Other,
            pool_uses: self.pool_uses.clone(),
            curve: self.curve.clone(),
            states: self.states.clone(),
            followers: Vec::new(),
            parted: Vec::new(),
            ..*self
        }
    }

    /// Lets the followers go on by themselves that the next input may tell from this prediction.
    fn part_from_followers(&mut self, inputs: &[PredictionInput]) {
        let Some(next) = inputs.first() else { return };
        if !self.followers.iter().any(|follower| self.may_differ(follower, next)) {
            return;
        }
        let all = std::mem::take(&mut self.followers).into_iter();
        let (parting, staying): (Vec<_>, Vec<_>) = all.partition(|follower| self.may_differ(follower, next));
        self.followers = staying;
        for Follower { row, settings } in parting {
            let mut own = self.fork(&settings);
            own.go_on(inputs);
            self.parted.push((row, own));
        }
    }

    /// Lets all followers go on by themselves.
    pub(crate) fn part_from_all(&mut self) {
        for Follower { row, settings } in std::mem::take(&mut self.followers) {
            self.parted.push((row, self.fork(&settings)));
        }
    }

    /// Whether a follower may do something else at this input.
    fn may_differ(&self, follower: &Follower, input: &PredictionInput) -> bool {
        let is_recorded = self.subject == PredictedRun::Recorded;
        match input {
            PredictionInput::Request(timed) => {
                let (Request::Alloc { requested_bytes, .. } | Request::Fail { requested_bytes, .. }) =
                    timed.request
                else {
                    return false;
                };
                let was_refused = timed.was_refused || matches!(timed.request, Request::Fail { .. });
                is_recorded && was_refused
                    || !self.allocator.serves_alike(&follower.settings, requested_bytes)
            }
            PredictionInput::RecordedSegment(..) => false,
            PredictionInput::Outside(OutsideMemory { bytes, asleep_bytes, call }) => {
                let device = &self.allocator.backend;
                is_recorded && call.is_some() && device.would_be_over_card(*bytes, *asleep_bytes)
            }
        }
    }

    /// Begins with segments and blocks that exist already. To be called before the first request.
    pub(crate) fn adopt(&mut self, state: &StartState) {
        for segment in &state.segments {
            let layout = &segment.layout;
            self.allocator.backend.adopt(layout.addr, layout.mapped_bytes(), layout.is_expandable);
            if layout.pool != (0, 0) {
                *self.pool_uses.entry(layout.pool.0 << 32 | layout.pool.1).or_default() += 1;
            }
            let blocks = self.allocator.adopt_segment(layout);
            for (recorded, own) in segment.blocks.iter().zip(blocks) {
                self.note_block(*recorded, own);
            }
        }
        if self.allocator.backend.is_over_card() {
            // A run on this card would have released its cache before.
            self.allocator.release_cached();
        }
        if self.allocator.backend.is_over_card() {
            let (_, request_bytes) = self.allocator.held_bytes();
            let failure =
                PredictedFailure { what: FailedWhat::Start, request_bytes, time_ns: 0, step: 0, stack: 0 };
            self.fail(failure);
        }
        self.note_reserved(0);
    }

    /// Goes on with what the recording shows next, unless the prediction has ended.
    pub(crate) fn go_on(&mut self, inputs: &[PredictionInput]) {
        for (place, input) in inputs.iter().enumerate() {
            if self.stop.is_some() {
                return;
            }
            if !self.followers.is_empty() {
                self.part_from_followers(&inputs[place..]);
            }
            match input {
                PredictionInput::Request(timed) => self.make(timed),
                PredictionInput::RecordedSegment(addr, bytes) => {
                    self.allocator.backend.note_recorded_segment(*addr, *bytes);
                }
                PredictionInput::Outside(outside) => self.set_outside(outside),
            }
        }
    }

    fn set_outside(&mut self, outside: &OutsideMemory) {
        let device = &mut self.allocator.backend;
        (device.outside_bytes, device.asleep_bytes) = (outside.bytes, outside.asleep_bytes);
        // The recorded run got this memory.
        let Some(call) = outside.call.filter(|_| self.subject == PredictedRun::Other) else { return };
        if device.is_over_card() {
            let LibraryCall { bytes, time_ns, step, stack, .. } = call;
            self.fail(PredictedFailure {
                what: FailedWhat::Library,
                request_bytes: bytes,
                time_ns,
                step,
                stack,
            });
        }
    }

    fn fail(&mut self, failure: PredictedFailure) {
        self.first_failure.get_or_insert(failure);
        self.stop = Some(PredictionStop::Failed(failure));
    }

    fn make(&mut self, timed: &TimedRequest) {
        match timed.request {
            Request::Alloc { block, requested_bytes, stream, pool } => {
                self.refuse_as_recorded(u32::from(timed.was_refused));
                if let Some(own) = self.alloc(requested_bytes, stream, pool) {
                    self.note_block(block, own);
                } else {
                    self.fail(failure_of(timed, requested_bytes));
                }
            }
            Request::Free { block, is_immediate } => self.free(block, is_immediate),
            Request::Complete { block } => {
                if let Some(ticket) = self.pending.remove(&block) {
                    self.allocator.finish_free(ticket);
                }
            }
            // See `release_before_pool`.
            Request::BeginPool => {}
            Request::EndPool { pool } => self.release_pool(pool),
            Request::ReleaseCached { only_pool: Some(pool) } => {
                self.allocator.release_cached_of_pool(pool_id(pool));
            }
            Request::ReleaseCached { only_pool: None } => self.allocator.release_cached(),
            Request::Fail { requested_bytes, stream, pool } => {
                self.refuse_as_recorded(u32::MAX);
                if self.alloc(requested_bytes, stream, pool).is_some() {
                    self.stop = Some(PredictionStop::Survived);
                } else {
                    self.first_failure.get_or_insert(failure_of(timed, requested_bytes));
                }
            }
        }
        self.allocator.backend.refused_calls = 0;
        let reserved_bytes = self.note_reserved(timed.time_ns);
        if let Some(recorded_bytes) = timed.reserved_bytes.filter(|_| self.stop.is_none())
            && reserved_bytes != recorded_bytes
        {
            self.first_difference.get_or_insert((reserved_bytes, recorded_bytes));
        }
    }

    /// Where the card is unknown, the recorded run shows when the driver refused memory.
    fn refuse_as_recorded(&mut self, calls: u32) {
        if self.subject == PredictedRun::Recorded && !self.allocator.backend.knows_card() {
            self.allocator.backend.refused_calls = calls;
        }
    }

    /// Notes the bytes of segments after a request, and returns them.
    fn note_reserved(&mut self, time_ns: u64) -> u64 {
        let (_, reserved_bytes) = self.allocator.held_bytes();
        self.curve.note(time_ns, reserved_bytes);
        if reserved_bytes > self.peak_reserved_bytes {
            self.peak_reserved_bytes = reserved_bytes;
            self.unused_at_peak = self.allocator.unused_bytes();
        }
        reserved_bytes
    }

    fn note_block(&mut self, block: RecordedBlock, own: ProgramBlock) {
        if block.index() >= self.blocks.len() {
            self.blocks.resize(block.index() + 1, None);
        }
        self.blocks[block.index()] = Some(own);
    }

    fn free(&mut self, block: Option<RecordedBlock>, is_immediate: bool) {
        let found = block.and_then(|block| Some((block, self.blocks.get_mut(block.index())?.take()?)));
        match found {
            Some((_, own)) if is_immediate => self.allocator.free_live(own),
            Some((block, own)) => {
                self.pending.insert(block, self.allocator.begin_free_live(own));
            }
            None => self.unknown_frees += 1,
        }
    }

    fn alloc(&mut self, requested_bytes: u64, stream: u64, pool: u64) -> Option<ProgramBlock> {
        if pool == 0 {
            return self.allocator.alloc_live(requested_bytes, stream).ok();
        }
        let id = pool_id(pool);
        self.allocator.begin_pool(id, Box::new(|_| true));
        *self.pool_uses.entry(pool).or_default() += 1;
        let refusals = self.refusals();
        let result = self.allocator.alloc_live(requested_bytes, stream).ok();
        self.allocator.end_pool(id);
        let was_refused = result.is_none() || self.refusals() > refusals;
        self.was_pool_refused |= self.retries_in_pools && was_refused;
        result
    }

    /// Ends the uses of a private pool, so that its memory can be returned.
    fn release_pool(&mut self, pool: u64) {
        for _ in 0..self.pool_uses.remove(&pool).unwrap_or(0) {
            self.allocator.release_pool(pool_id(pool));
        }
    }

    /// The cache is emptied before a graph is captured. The recorded run had nothing to return, so
    /// it does not show whether this is a capture.
    pub(crate) fn release_before_pool(&mut self) {
        if self.stop.is_none() && self.has_unused_segments() {
            self.allocator.release_cached();
            self.has_unknown_release = true;
        }
    }

    /// The end of a `MemPool` returns its own segments, and `empty_cache()` all. The recorded run
    /// had no other segment to return, so it does not show which it was.
    pub(crate) fn note_unknown_release(&mut self) {
        self.has_unknown_release |= self.stop.is_none() && self.has_unused_segments();
    }

    /// Whether `empty_cache()` would return segments outside private pools.
    pub(crate) fn has_unused_segments(&self) -> bool {
        self.allocator.has_unused_segments()
    }

    /// Whether this allocator is in a state in which it was when this was last called. `live`: the
    /// recorded blocks, the oldest first.
    pub(crate) fn is_back_in_a_state(&mut self, live: &[RecordedBlock]) -> bool {
        let Some(state) = self.state_print(live) else { return false };
        let is_known = self.states.contains(&state);
        if !is_known {
            self.states.push(state);
        }
        is_known
    }

    /// A hash of everything that decides what equal requests do to this allocator. `None` if that
    /// is more than a hash can hold.
    fn state_print(&self, live: &[RecordedBlock]) -> Option<u64> {
        if !self.pending.is_empty() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (self.allocator.state_print()?, self.segments_made()).hash(&mut hasher);
        for (_, total) in self.driver_calls() {
            (total.count, total.bytes).hash(&mut hasher);
        }
        for block in live {
            let own = self.blocks.get(block.index()).copied().flatten();
            own.map(|own| self.allocator.address_of(own)).hash(&mut hasher);
        }
        Some(hasher.finish())
    }

    /// Goes on to a later moment, up to which nothing changes.
    pub(crate) fn go_on_to(&mut self, time_ns: u64) {
        if self.stop.is_none() {
            let (_, reserved_bytes) = self.allocator.held_bytes();
            self.curve.note(time_ns, reserved_bytes);
        }
    }

    /// Bytes of segments over time.
    pub(crate) fn reserved_curve(&self) -> ReservedCurve {
        self.curve.curve()
    }

    /// A statistic of `memory_stats()`.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let mut found = 0;
        self.allocator.stats.for_each(|other, value| {
            if other == name {
                found = value;
            }
        });
        found
    }

    /// Requests that failed, also those that `throw_on_cudamalloc_oom` rejects without asking the
    /// driver, and memory outside the allocator that the card does not have.
    pub(crate) fn failures(&self) -> u64 {
        let is_outside =
            |stop| matches!(stop, PredictionStop::Failed(failure) if failure.what != FailedWhat::Block);
        let outside = u64::from(self.stop.is_some_and(is_outside));
        self.allocator.stats.num_ooms + self.allocator.stats.num_oom_rejections + outside
    }

    /// Whether the addresses that the driver gives to segments matter.
    pub(crate) fn did_address_decide(&self) -> bool {
        self.allocator.did_address_decide()
    }

    /// The calls of the driver by name.
    pub(crate) fn driver_calls(&self) -> impl Iterator<Item = (&'static str, CallTotal)> + '_ {
        self.allocator.backend.calls.iter().map(|(call, total)| (call.name(), *total))
    }

    /// Calls of the driver for which the card had too little memory.
    pub(crate) fn refusals(&self) -> u64 {
        self.allocator.backend.refusals
    }

    pub(crate) fn segments_made(&self) -> u64 {
        self.allocator.backend.segments_made
    }
}

fn failure_of(timed: &TimedRequest, request_bytes: u64) -> PredictedFailure {
    PredictedFailure {
        what: FailedWhat::Block,
        request_bytes,
        time_ns: timed.time_ns,
        step: timed.step,
        stack: timed.stack,
    }
}
