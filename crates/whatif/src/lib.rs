//! Predicts what a recorded run would have done with other settings of PyTorch's allocator,
//! another version, or another card.
//!
//! [`WhatIf`] passes over the events of a run once. It takes the program's requests from them
//! (`requests.rs`) and makes them to several allocators at once (`prediction.rs`). One has the
//! settings of the run and must reproduce the recording; each [`Scenario`] has one, and others with
//! random orders of addresses on request (`order_range.rs`). Scenarios share one as long as no
//! request tells their settings apart.
//! Memory grows with the live blocks and the scenarios, not with the events.
//!
//! [`OomPredictor`] does so up to the first out-of-memory error, and says which settings would have
//! served the request that failed.

#![forbid(unsafe_code)]

mod answer;
mod cards;
mod device;
mod first_oom;
mod order_range;
mod outside_memory;
mod prediction;
mod pressure;
mod reactions;
mod reliance;
mod requests;
mod reserved_curve;
mod rows;
mod scenario;
mod search;
mod shared_memory;

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_format::EventKind;
use gpumemtrace_format::event::{FLAG_EXISTED, SAMPLE_SOURCE_PROGRAM};
use gpumemtrace_replay::report::WalkedEvent;

pub use answer::{
    FailedRequest, FailedWhat, MoreNeeded, PredictionStatus, RecordedStart, ReservedRange, SCHEMA,
    UnusedByCause, VERSION, WhatIfAnswer, WhatIfRow,
};
pub use cards::KnownCard;
use device::AddressOrder;
pub use first_oom::OomPredictor;
use order_range::OrderRange;
use outside_memory::{OutsideMemory, OutsideWatch};
use prediction::{Follower, PredictedRun, Prediction, PredictionInput};
use pressure::PressureWatch;
pub use reliance::Doubt;
pub use requests::{RecordedBlock, Request, RequestReader, StartState, TimedRequest};
pub use rows::PredictedRow;
use rows::{doubts_of_prediction, rank, row_of};
pub use scenario::Scenario;
pub use search::{
    CardSearch, LARGEST_SCHEMA, LARGEST_VERSION, LargestAnswer, LargestOfSetting, LargestSearch, ValueRun,
};
use shared_memory::SharedMemoryWatch;

/// Inputs that are collected before each prediction in turn goes on with them, so that its blocks
/// stay in the processor's cache.
const BATCH: usize = 8192;

/// One row: what is asked, its prediction unless the release refuses the settings, and others with
/// random orders of addresses.
#[derive(Debug)]
struct OtherRun {
    scenario: Scenario,
    prediction: Option<Prediction>,
    /// The prediction that stands for this row as long as its settings make no difference.
    leader: Option<Leader>,
    range: OrderRange,
}

/// A row with a prediction of its own.
#[derive(Clone, Copy, Debug)]
enum Leader {
    Base,
    Other(usize),
}

impl OtherRun {
    fn predictions_mut(&mut self) -> impl Iterator<Item = &mut Prediction> {
        self.prediction.iter_mut().chain(self.range.predictions_mut())
    }
}

/// Lets a prediction that was begun stand for a scenario; `None` if none can.
fn begin_as_follower(
    scenario: &Scenario,
    base: &mut (Scenario, Prediction),
    others: &mut [OtherRun],
) -> Option<Leader> {
    let row = others.len();
    if let Some(settings) = scenario.settings_beside(&base.0) {
        base.1.followers.push(Follower { row, settings });
        return Some(Leader::Base);
    }
    others.iter_mut().enumerate().find_map(|(leader, other)| {
        let settings = scenario.settings_beside(&other.scenario)?;
        other.prediction.as_mut()?.followers.push(Follower { row, settings });
        Some(Leader::Other(leader))
    })
}

/// Predictions for one device of a run.
#[derive(Debug)]
pub struct WhatIf {
    device: u8,
    requests: RequestReader,
    base: (Scenario, Prediction),
    base_range: OrderRange,
    others: Vec<OtherRun>,
    /// Collected inputs that the predictions have not received yet.
    inputs: Vec<PredictionInput>,
    outside: OutsideWatch,
    memory_queries: u64,
    ooms: u64,
    pressure: PressureWatch,
    shared_memory: SharedMemoryWatch,
    /// What is known to be missing or unknown before the first event.
    known_doubts: Vec<Doubt>,
    /// Releases that may have been recorded; only that of `base` if it is known.
    releases: Vec<TorchVersion>,
    start: Option<RecordedStart>,
    /// Live blocks at the end of the last equal step.
    live_at_step_end: Option<usize>,
    has_private_pools: bool,
    /// PyTorch's memory was returned while PyTorch counted it.
    slept: bool,
}

/// What a walk over a run shows.
#[derive(Clone, Debug)]
pub struct WhatIfRows {
    /// The recorded run, as the model predicts it.
    pub base: PredictedRow,
    /// The others, the best first.
    pub rows: Vec<PredictedRow>,
    /// What existed before the first request.
    pub start: Option<RecordedStart>,
    /// Why the run may need a larger card than predicted.
    pub may_need_more: Vec<MoreNeeded>,
    /// With the recorded settings, the model reserves what the run reserved, at every request.
    pub is_reproduced: bool,
}

impl WhatIf {
    /// Predictions for the device of this ordinal. `base` is the recorded run itself.
    /// `known_doubts` holds for all rows.
    pub fn new(device: u8, base: Scenario, others: Vec<Scenario>, known_doubts: Vec<Doubt>) -> Self {
        let mut begun = base.begin(AddressOrder::AsRecorded);
        begun.subject = PredictedRun::Recorded;
        let mut base = (base, begun);
        let mut rows: Vec<OtherRun> = Vec::new();
        for scenario in others {
            let leader = begin_as_follower(&scenario, &mut base, &mut rows);
            let prediction = if leader.is_none() { scenario.begin_if_accepted() } else { None };
            rows.push(OtherRun { scenario, prediction, leader, range: OrderRange::default() });
        }
        Self {
            device,
            requests: RequestReader::new(device),
            base,
            base_range: OrderRange::default(),
            others: rows,
            inputs: Vec::with_capacity(BATCH),
            outside: OutsideWatch::new(device),
            memory_queries: 0,
            ooms: 0,
            pressure: PressureWatch::default(),
            shared_memory: SharedMemoryWatch::new(device),
            known_doubts,
            releases: Vec::new(),
            start: None,
            live_at_step_end: None,
            has_private_pools: false,
            slept: false,
        }
    }

    /// Releases that may have been recorded besides that of `base`. Rows say where that matters.
    #[must_use]
    pub fn with_releases(mut self, releases: &[TorchVersion]) -> Self {
        self.releases = releases.to_vec();
        self
    }

    /// Also predicts each row with this many other orders of addresses where they can decide, so
    /// that it has a range. To be called before the first event.
    #[must_use]
    pub fn with_orders(mut self, orders: u32) -> Self {
        self.base_range = OrderRange::begin(&self.base.0, orders);
        for other in &mut self.others {
            other.range = OrderRange::begin(&other.scenario, orders);
        }
        self
    }

    /// Passes an event of the run.
    pub fn on_event(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        self.shared_memory.on_event(event);
        self.outside.on_event(walked);
        for place in 0..self.outside.changes().len() {
            self.push_outside(self.outside.changes()[place]);
        }
        if event.device == self.device {
            match event.kind {
                EventKind::MEMORY_SAMPLE if event.aux[1] == SAMPLE_SOURCE_PROGRAM => self.on_query(walked),
                EventKind::BLOCK_OOM => {
                    self.ooms += 1;
                    self.pressure.note_short(walked.time_ns);
                }
                _ => {}
            }
        }
        let requests = self.requests.on_event(walked).len();
        self.adopt_start();
        for place in 0..requests {
            let timed = self.requests.ready()[place];
            self.push_request(timed);
        }
        if self.requests.was_refused() {
            self.pressure.note_short(walked.time_ns);
        }
        let is_new = event.flags & FLAG_EXISTED == 0;
        if event.device == self.device && event.kind == EventKind::SEGMENT_ALLOC && is_new {
            self.inputs.push(PredictionInput::RecordedSegment(event.addr, event.size));
        }
        if self.inputs.len() >= BATCH {
            self.go_on();
        }
    }

    fn push_outside(&mut self, outside: OutsideMemory) {
        if let Some(call) = outside.call {
            for place in 0..self.requests.settle_before(call.seq).len() {
                self.push_request(self.requests.ready()[place]);
            }
        }
        self.slept |= outside.asleep_bytes > 0;
        self.inputs.push(PredictionInput::Outside(outside));
    }

    /// All predictions begin with what existed before the first request.
    fn adopt_start(&mut self) {
        let Some(state) = self.requests.take_start() else { return };
        let StartState { blocks, allocated_bytes, reserved_bytes, .. } = state;
        self.start = Some(RecordedStart { blocks, allocated_bytes, reserved_bytes });
        // What exists already may hold blocks that a limit concerns.
        let predictions = self.others.iter_mut().filter_map(|other| other.prediction.as_mut());
        predictions.chain([&mut self.base.1]).for_each(Prediction::part_from_all);
        self.take_parted();
        let predictions = self.others.iter_mut().flat_map(OtherRun::predictions_mut);
        let predictions = predictions.chain(self.base_range.predictions_mut());
        predictions.chain([&mut self.base.1]).for_each(|prediction| prediction.adopt(&state));
    }

    fn push_request(&mut self, timed: TimedRequest) {
        self.has_private_pools |= matches!(timed.request, Request::BeginPool | Request::EndPool { .. });
        if timed.request == (Request::ReleaseCached { only_pool: None }) {
            self.pressure.note_empty_cache(timed.stack, timed.time_ns);
        }
        self.inputs.push(PredictionInput::Request(timed));
        let is_ambiguous =
            matches!(timed.request, Request::BeginPool | Request::ReleaseCached { only_pool: Some(_) });
        if !is_ambiguous || !self.is_release_unknown() {
            return;
        }
        let begins = timed.request == Request::BeginPool;
        for prediction in self.others.iter_mut().flat_map(OtherRun::predictions_mut) {
            if begins {
                prediction.release_before_pool();
            } else {
                prediction.note_unknown_release();
            }
        }
    }

    /// Whether the recorded run had nothing to return now, so that it does not show whether the
    /// program emptied the whole cache.
    fn is_release_unknown(&mut self) -> bool {
        self.go_on();
        !self.base.1.has_unused_segments()
    }

    /// Passes the collected inputs to all predictions, on as many threads as there are processors.
    fn go_on(&mut self) {
        let predictions = self.others.iter_mut().flat_map(OtherRun::predictions_mut);
        let predictions = predictions.chain(self.base_range.predictions_mut());
        let mut predictions: Vec<&mut Prediction> = predictions.chain([&mut self.base.1]).collect();
        predictions.retain(|prediction| prediction.stop.is_none());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = predictions.len().div_ceil(threads).max(1);
        let inputs = &self.inputs;
        std::thread::scope(|scope| {
            for predictions in predictions.chunks_mut(share) {
                scope.spawn(move || predictions.iter_mut().for_each(|prediction| prediction.go_on(inputs)));
            }
        });
        self.inputs.clear();
        self.take_parted();
    }

    /// Gives a row its own prediction once its settings made a difference.
    fn take_parted(&mut self) {
        let predictions = self.others.iter_mut().filter_map(|other| other.prediction.as_mut());
        let parted = predictions.chain([&mut self.base.1]).flat_map(|one| std::mem::take(&mut one.parted));
        for (row, own) in parted.collect::<Vec<_>>() {
            (self.others[row].prediction, self.others[row].leader) = (Some(own), None);
        }
    }

    /// The prediction of a row; `None` if the release refuses its settings.
    fn prediction_of<'a>(&'a self, other: &'a OtherRun) -> Option<&'a Prediction> {
        match other.leader {
            None => other.prediction.as_ref(),
            Some(Leader::Base) => Some(&self.base.1),
            Some(Leader::Other(row)) => self.others[row].prediction.as_ref(),
        }
    }

    /// Ends a step that is equal to the one before it. Returns true if each allocator was in its
    /// present state at the end of an earlier one: then equal steps bring nothing new.
    pub fn end_equal_step(&mut self) -> bool {
        // While something leaks, no state comes back.
        let live_blocks = self.requests.count_live_blocks();
        if self.live_at_step_end.replace(live_blocks).is_some_and(|before| before != live_blocks) {
            return false;
        }
        self.go_on();
        let Some(live) = self.requests.live_blocks() else { return false };
        let others = self.others.iter_mut().flat_map(OtherRun::predictions_mut);
        let all = others.chain(self.base_range.predictions_mut()).chain([&mut self.base.1]);
        let going_on = all.filter(|prediction| prediction.stop.is_none());
        // Each of them notes its state, also after one that is in a new one.
        going_on.map(|prediction| u32::from(!prediction.is_back_in_a_state(&live))).sum::<u32>() == 0
    }

    /// Goes on to a later moment, up to which the allocators reserve what they do now.
    pub fn go_on_to(&mut self, time_ns: u64) {
        self.go_on();
        let others = self.others.iter_mut().flat_map(OtherRun::predictions_mut);
        let all = others.chain(self.base_range.predictions_mut()).chain([&mut self.base.1]);
        all.for_each(|prediction| prediction.go_on_to(time_ns));
    }

    /// Whether the model of the recorded run has reserved more than this, or failed a request.
    pub fn is_base_beyond(&self, reserved_bytes: u64) -> bool {
        let (_, base) = &self.base;
        base.peak_reserved_bytes > reserved_bytes || base.failures() > 0
    }

    /// PyTorch itself asks for free memory after the driver refused some. Only other calls show
    /// that the program may act on it.
    fn on_query(&mut self, walked: &WalkedEvent<'_>) {
        if !self.requests.was_refused() {
            self.memory_queries += 1;
            self.pressure.note_short(walked.time_ns);
        }
    }

    /// The rows, and what holds for all of them.
    pub fn finish(mut self) -> WhatIfRows {
        let requests = self.requests.finish().len();
        self.adopt_start();
        for place in 0..requests {
            let timed = self.requests.ready()[place];
            self.push_request(timed);
        }
        self.outside.finish();
        for place in 0..self.outside.changes().len() {
            self.push_outside(self.outside.changes()[place]);
        }
        self.go_on();
        let doubts = self.common_doubts();
        let (scenario, prediction) = &self.base;
        let own_doubts = doubts_of_prediction(scenario, prediction);
        let own_doubts = [doubts.clone(), own_doubts].concat();
        let base = row_of(scenario, Some(prediction), &self.base_range, own_doubts);
        let rows = self.others.iter().map(|other| {
            let (OtherRun { scenario, range, .. }, prediction) = (other, self.prediction_of(other));
            let own_doubts = self.doubts_of_row(scenario, prediction);
            row_of(scenario, prediction, range, [doubts.clone(), own_doubts].concat())
        });
        let mut rows: Vec<PredictedRow> = rows.collect();
        rows.sort_by_key(|predicted| rank(&predicted.row));
        let may_need_more = self.may_need_more();
        let is_reproduced = self.requests.requests > 0 && self.base.1.first_difference.is_none();
        WhatIfRows { base, rows, start: self.start, may_need_more, is_reproduced }
    }

    fn may_need_more(&self) -> Vec<MoreNeeded> {
        let is_incomplete = self.known_doubts.contains(&Doubt::Incomplete) || self.base.1.unknown_frees > 0;
        let found = [
            (self.requests.requests == 0, MoreNeeded::NoHistory),
            (self.start.is_some(), MoreNeeded::StartedLate),
            (is_incomplete, MoreNeeded::Incomplete),
            (!self.outside.is_known(), MoreNeeded::OutsideUnknown),
        ];
        found.into_iter().filter(|(is_found, _)| *is_found).map(|(_, more)| more).collect()
    }

    /// The doubts of one row that not every row has.
    fn doubts_of_row(&self, scenario: &Scenario, prediction: Option<&Prediction>) -> Vec<Doubt> {
        let recorded_version = self.base.0.version;
        let mut doubts = scenario.exclusions(self.shared_memory.was_seen);
        if scenario.version != recorded_version {
            doubts.push(Doubt::OtherVersion { recorded: recorded_version });
        }
        if scenario.is_other_model {
            doubts.push(Doubt::OtherModel);
        }
        let others = self.releases.iter().filter(|release| **release != scenario.version);
        if scenario.version == recorded_version
            && others.clone().any(|release| scenario.differs_in(*release, self.has_private_pools))
            && let (Some(oldest), Some(newest)) = (self.releases.iter().min(), self.releases.iter().max())
        {
            doubts.push(Doubt::ReleaseUnknown { oldest: *oldest, newest: *newest });
        }
        if self.requests.refused > 0 && scenario.card_bytes.is_none() {
            doubts.push(Doubt::CardUnknown { refused: self.requests.refused });
        }
        if self.slept && scenario.setting != self.base.0.setting {
            doubts.push(Doubt::Slept);
        }
        if scenario.has_hidden_fraction() {
            doubts.push(Doubt::FractionUnknown);
        }
        let Some(prediction) = prediction else { return doubts };
        if !self.outside.is_known() && self.may_exceed(scenario, prediction) {
            doubts.push(Doubt::OutsideUnknown);
        }
        if prediction.did_address_decide() {
            doubts.push(Doubt::AddressOrder);
        }
        if self.requests.freed_in_use > 0 {
            doubts.push(Doubt::FreedInUse { blocks: self.requests.freed_in_use });
        }
        doubts.extend(doubts_of_prediction(scenario, prediction));
        doubts
    }

    /// Whether a prediction needs more of its card than the recorded run is known to have got.
    fn may_exceed(&self, scenario: &Scenario, prediction: &Prediction) -> bool {
        let peak = |prediction: &Prediction| prediction.stat("reserved_bytes.all.peak");
        scenario.card_bytes.is_some()
            && (scenario.card_bytes != self.base.0.card_bytes || peak(prediction) > peak(&self.base.1))
    }

    /// The doubts of every row.
    fn common_doubts(&self) -> Vec<Doubt> {
        let mut doubts = self.known_doubts.clone();
        let base = &self.base.1;
        if self.requests.requests == 0 {
            return vec![Doubt::NoHistory];
        }
        doubts.extend(self.start.map(Doubt::StartedLate));
        if base.unknown_frees > 0 && !doubts.contains(&Doubt::Incomplete) {
            doubts.push(Doubt::Incomplete);
        }
        if self.requests.without_detail > 0 {
            doubts.push(Doubt::WithoutDetail { blocks: self.requests.without_detail });
        }
        if let Some((predicted_bytes, recorded_bytes)) = base.first_difference {
            doubts.push(Doubt::ModelDiffers { predicted_bytes, recorded_bytes });
        }
        if self.memory_queries > 0 {
            doubts.push(Doubt::MemoryQueries { calls: self.memory_queries });
        }
        if self.ooms > 0 {
            doubts.push(Doubt::Ooms { errors: self.ooms });
        }
        if self.pressure.reactions > 0 {
            doubts.push(Doubt::CacheEmptied { calls: self.pressure.reactions });
        }
        doubts
    }
}

#[cfg(test)]
mod tests;
