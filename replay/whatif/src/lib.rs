//! Predicts what a recorded run would have done with other settings of PyTorch's allocator,
//! another version, or another card.
//!
//! [`WhatIf`] passes over the events of a run once. It takes the program's requests from them
//! (`requests.rs`) and makes them to several allocators at once (`prediction.rs`). One has the
//! settings of the run and must reproduce the recording; each [`Scenario`] has one or two.
//! Memory grows with the live blocks and the scenarios, not with the events.
//!
//! [`OomPredictor`] does so up to the first out-of-memory error, and says which settings would have
//! served the request that failed.

#![forbid(unsafe_code)]

mod answer;
mod card_search;
mod cards;
mod device;
mod first_oom;
mod prediction;
mod reactions;
mod reliance;
mod requests;
mod scenario;

use gpumemtrace_format::{Event, EventKind};
use gpumemtrace_replay::report::WalkedEvent;

pub use answer::{FailedRequest, PredictionStatus, SCHEMA, UnusedByCause, VERSION, WhatIfAnswer, WhatIfRow};
pub use card_search::CardSearch;
pub use cards::KnownCard;
use device::AddressOrder;
pub use first_oom::OomPredictor;
use prediction::{Prediction, PredictionInput, PredictionStop};
pub use reliance::Doubt;
pub use requests::{RecordedAddr, Request, RequestReader, TimedRequest};
pub use scenario::Scenario;

/// `aux1` of a memory sample that the program asked for.
const ASKED_BY_PROGRAM: u64 = 0;
/// Inputs that are collected before each prediction in turn goes on with them, so that its blocks
/// stay in the processor's cache.
const BATCH: usize = 8192;

/// Predictions for one device of a run.
#[derive(Debug)]
pub struct WhatIf {
    device: u8,
    requests: RequestReader,
    base: (Scenario, Prediction),
    others: Vec<(Scenario, Vec<Prediction>)>,
    /// Collected inputs that the predictions have not received yet.
    inputs: Vec<PredictionInput>,
    /// Memory in use on the device, sampled since the last change of segments.
    sampled_bytes: Option<u64>,
    /// Bytes of segments, if nothing changed in the driver since they were last reported.
    reserved_bytes: Option<u64>,
    /// Whether the recording has shown how much of the card PyTorch cannot get.
    knows_outside: bool,
    memory_queries: u64,
    ooms: u64,
    /// What is known to be missing or unknown before the first event.
    known_doubts: Vec<Doubt>,
}

/// A row, and what the caller must put into words.
#[derive(Clone, Debug)]
pub struct PredictedRow {
    /// The row without `reason`, and without the site of its failure.
    pub row: WhatIfRow,
    /// Why it is not exact; empty if it is.
    pub doubts: Vec<Doubt>,
    /// The stack of its first failure.
    pub failed_stack: Option<u32>,
}

impl WhatIf {
    /// Predictions for the device of this ordinal. `base` is the recorded run itself.
    /// `known_doubts` holds for all rows.
    pub fn new(device: u8, base: Scenario, others: Vec<Scenario>, known_doubts: Vec<Doubt>) -> Self {
        let begun = base.begin(AddressOrder::AsRecorded);
        let others = others.into_iter().map(|scenario| {
            let begun = scenario.begin_all();
            (scenario, begun)
        });
        Self {
            device,
            requests: RequestReader::new(device),
            base: (base, begun),
            others: others.collect(),
            inputs: Vec::with_capacity(BATCH),
            sampled_bytes: None,
            reserved_bytes: None,
            knows_outside: false,
            memory_queries: 0,
            ooms: 0,
            known_doubts,
        }
    }

    /// Passes an event of the run.
    pub fn on_event(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        if event.device == self.device {
            match event.kind {
                EventKind::MEMORY_SAMPLE => self.on_sample(event),
                EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => {
                    self.reserved_bytes = Some(event.aux[1]);
                    self.use_sample(event.aux[1]);
                }
                EventKind::BLOCK_OOM => self.ooms += 1,
                kind if kind.is_driver_call() && event.result == 0 => {
                    self.sampled_bytes = None;
                    self.reserved_bytes = None;
                }
                _ => {}
            }
        }
        for place in 0..self.requests.on_event(walked).len() {
            let timed = self.requests.ready()[place];
            self.push_request(timed);
        }
        if event.device == self.device && event.kind == EventKind::SEGMENT_ALLOC {
            self.inputs.push(PredictionInput::RecordedSegment(event.addr, event.size));
        }
        if self.inputs.len() >= BATCH {
            self.go_on();
        }
    }

    fn push_request(&mut self, timed: TimedRequest) {
        self.inputs.push(PredictionInput::Request(timed));
        let is_ambiguous =
            matches!(timed.request, Request::BeginPool | Request::ReleaseCached { only_pool: Some(_) });
        if !is_ambiguous || !self.is_release_unknown() {
            return;
        }
        let begins = timed.request == Request::BeginPool;
        for prediction in self.others.iter_mut().flat_map(|(_, same)| same) {
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
        let predictions = self.others.iter_mut().flat_map(|(_, same)| same);
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
    }

    /// PyTorch itself asks for free memory after the driver refused some. Only other calls show
    /// that the program may act on it.
    fn on_sample(&mut self, event: &Event) {
        let is_asked = event.aux[1] == ASKED_BY_PROGRAM && !self.requests.was_refused();
        self.memory_queries += u64::from(is_asked);
        self.sampled_bytes = Some(event.size);
        if let Some(reserved_bytes) = self.reserved_bytes {
            self.use_sample(reserved_bytes);
        }
    }

    /// Memory in use that is not in segments belongs to contexts, libraries and other processes.
    /// A sample is taken right after a driver call, and PyTorch reports its segment only then.
    fn use_sample(&mut self, reserved_bytes: u64) {
        let Some(used_bytes) = self.sampled_bytes.take() else { return };
        let outside_bytes = used_bytes.saturating_sub(reserved_bytes);
        self.knows_outside = true;
        self.inputs.push(PredictionInput::OutsideBytes(outside_bytes));
    }

    /// The rows: the recorded run, then the others, the best first.
    pub fn finish(mut self) -> (PredictedRow, Vec<PredictedRow>) {
        for place in 0..self.requests.finish().len() {
            let timed = self.requests.ready()[place];
            self.push_request(timed);
        }
        self.go_on();
        let doubts = self.common_doubts();
        let base = row_of(&self.base.0, &self.base.1, doubts.clone());
        let rows = self.others.iter().filter_map(|(scenario, predictions)| {
            let (recorded, others) = predictions.split_first()?;
            let mut doubts = doubts.clone();
            if !self.knows_outside && self.may_exceed(scenario, recorded) {
                doubts.push(Doubt::OutsideUnknown);
            }
            if recorded.has_unknown_release {
                doubts.push(Doubt::UnknownRelease);
            }
            if !others.iter().all(|other| is_same_answer(recorded, other)) {
                doubts.push(Doubt::AddressOrder);
            }
            Some(row_of(scenario, recorded, doubts))
        });
        let mut rows: Vec<PredictedRow> = rows.collect();
        rows.sort_by_key(|predicted| rank(&predicted.row));
        (base, rows)
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
        doubts
    }
}

/// The statistics that two orders of addresses must share.
const COMPARED: &[&str] = &[
    "allocated_bytes.all.peak",
    "reserved_bytes.all.peak",
    "reserved_bytes.all.current",
    "segment.all.allocated",
    "num_alloc_retries",
    "num_ooms",
];

fn is_same_answer(one: &Prediction, other: &Prediction) -> bool {
    one.stop == other.stop && COMPARED.iter().all(|name| one.stat(name) == other.stat(name))
}

/// Refused rows last, then those that fail, then by peak, by end, and by calls of the driver.
fn rank(row: &WhatIfRow) -> (bool, bool, Option<u64>, Option<u64>, u64) {
    let calls = row.driver_calls.values().sum();
    (
        row.status == PredictionStatus::Refused,
        row.ooms > 0,
        row.peak_reserved_bytes,
        row.end_reserved_bytes,
        calls,
    )
}

fn row_of(scenario: &Scenario, prediction: &Prediction, mut doubts: Vec<Doubt>) -> PredictedRow {
    if prediction.stop == Some(PredictionStop::Survived) {
        doubts.push(Doubt::Survived);
    }
    let settings = scenario.not_modelled();
    if !settings.is_empty() {
        doubts.push(Doubt::NotModelled { settings });
    }
    let is_refused = doubts.iter().any(|doubt| doubt.status() == PredictionStatus::Refused);
    let status = match (is_refused, doubts.is_empty()) {
        (true, _) => PredictionStatus::Refused,
        (false, true) => PredictionStatus::Exact,
        (false, false) => PredictionStatus::Indicative,
    };
    let stat = |name: &str| (!is_refused).then(|| prediction.stat(name));
    let failure = prediction.first_failure.filter(|_| !is_refused);
    let calls = prediction.driver_calls().filter(|_| !is_refused);
    let calls: Vec<_> = calls.map(|(name, total)| (name.to_owned(), total)).collect();
    let row = WhatIfRow {
        setting: scenario.setting.clone(),
        torch: Some(scenario.version.to_string()),
        card_bytes: scenario.card_bytes,
        status,
        reason: None,
        peak_reserved_bytes: stat("reserved_bytes.all.peak"),
        peak_unused: (!is_refused).then(|| prediction.unused_at_peak.into()),
        peak_allocated_bytes: stat("allocated_bytes.all.peak"),
        end_reserved_bytes: stat("reserved_bytes.all.current"),
        ooms: stat("num_ooms").unwrap_or(0),
        retries: stat("num_alloc_retries").unwrap_or(0),
        segments_made: if is_refused { 0 } else { prediction.segments_made() },
        driver_calls: calls.iter().map(|(name, total)| (name.clone(), total.count)).collect(),
        driver_bytes: calls.iter().map(|(name, total)| (name.clone(), total.bytes)).collect(),
        first_failure: failure.map(|failure| FailedRequest {
            request_bytes: failure.request_bytes,
            site: None,
            time_ns: failure.time_ns,
            step: failure.step,
        }),
    };
    PredictedRow { row, doubts, failed_stack: failure.map(|failure| failure.stack) }
}
