//! Predicts whether other settings would have served the request at the first out-of-memory error.
//!
//! A verdict needs four things. The model reproduces the run up to the error. Nothing in the
//! program reacted to memory before it. Neither the addresses of segments nor the speed of the GPU
//! decided about a block. And it is known how much of the card PyTorch could have: exactly
//! at the error, where PyTorch reports what is free. Before it, samples and the driver calls of
//! other libraries show where it was different. That matters only for a prediction that was short
//! of memory by then, or that reserved more than was available. Requests for private pools get no
//! verdict, because the recording does not show which of them are captures of graphs.

use std::ops::ControlFlow;

use gpumemtrace_format::EventKind;
use gpumemtrace_format::event::SAMPLE_SOURCE_NVML;
use gpumemtrace_replay::report::{FirstOom, SettingVerdict, WalkedEvent};

use crate::device::AddressOrder;
use crate::outside_memory::{DriverBytes, OutsideMemory};
use crate::prediction::{Prediction, PredictionInput, PredictionStop};
use crate::reactions::MemoryReactions;
use crate::requests::{Request, RequestReader};
use crate::scenario::Scenario;
use crate::shared_memory::SharedMemoryWatch;

/// Predictions up to the first out-of-memory error of a run.
#[derive(Debug)]
pub struct OomPredictor {
    oom: FirstOom,
    /// Bytes of the card that PyTorch could have at the error.
    available_bytes: u64,
    requests: RequestReader,
    reactions: MemoryReactions,
    base: PredictionToOom,
    others: Vec<(Scenario, Option<PredictionToOom>)>,
    inputs: Vec<PredictionInput>,
    availability: AvailabilityWatch,
    shared_memory: SharedMemoryWatch,
    /// Whether the error was reached, and everything before it allows verdicts.
    is_usable: bool,
}

/// A prediction, and whether it depends on memory that is not known exactly.
#[derive(Debug)]
struct PredictionToOom {
    prediction: Prediction,
    /// It was short of memory before a moment at which other memory was available.
    is_uncertain: bool,
}

impl OomPredictor {
    /// Predictions for this error. `base` is the recorded run itself. All scenarios must have the
    /// card of the error.
    pub fn new(oom: FirstOom, base: &Scenario, others: Vec<Scenario>) -> Self {
        let available_bytes = oom.reserved_bytes.saturating_add(oom.free_bytes);
        let bytes = oom.card_bytes.saturating_sub(available_bytes);
        let outside = OutsideMemory { bytes, ..OutsideMemory::default() };
        let begin = |mut prediction: Prediction| {
            prediction.go_on(&[PredictionInput::Outside(outside)]);
            PredictionToOom { prediction, is_uncertain: false }
        };
        let others = others.into_iter().map(|scenario| {
            let begun = scenario.begin_if_accepted().map(begin);
            (scenario, begun)
        });
        Self {
            oom,
            available_bytes,
            requests: RequestReader::new(oom.device),
            reactions: MemoryReactions::default(),
            base: begin(base.begin(AddressOrder::AsRecorded)),
            others: others.collect(),
            inputs: Vec::new(),
            availability: AvailabilityWatch::new(&oom),
            shared_memory: SharedMemoryWatch::new(oom.device),
            is_usable: false,
        }
    }

    /// Passes an event of the run. Breaks at the error, or once no verdict is possible any more.
    pub fn on_event(&mut self, walked: &WalkedEvent<'_>) -> ControlFlow<()> {
        let event = walked.event;
        self.shared_memory.on_event(event);
        let was_refused = self.reactions.on_event(event);
        let is_oom = event.kind == EventKind::BLOCK_OOM;
        if let Some(available_bytes) = self.availability.on_event(walked)
            && available_bytes != self.available_bytes
        {
            self.note_other_availability();
        }
        let is_known = self.make_requests(walked) && !self.reactions.were_seen;
        if is_oom {
            self.is_usable = is_known
                && event.seq == self.oom.seq
                // A request that PyTorch refuses itself failed at a limit, not at the card.
                && was_refused
                && !self.reactions.has_open_calls()
                && matches!(self.base.outcome(), Some(false))
                && !self.base.is_uncertain;
        }
        if is_oom || !is_known {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Makes the requests of an event everywhere. Returns whether the model still reproduces the
    /// run.
    fn make_requests(&mut self, walked: &WalkedEvent<'_>) -> bool {
        let event = walked.event;
        self.inputs.clear();
        self.inputs.extend(self.requests.on_event(walked).iter().copied().map(PredictionInput::Request));
        // With other settings, what existed before would lie elsewhere.
        if self.requests.take_start().is_some() {
            return false;
        }
        if event.device == self.oom.device && event.kind == EventKind::SEGMENT_ALLOC {
            self.inputs.push(PredictionInput::RecordedSegment(event.addr, event.size));
        }
        for one in self.others.iter_mut().filter_map(|(_, one)| one.as_mut()).chain([&mut self.base]) {
            one.prediction.go_on(&self.inputs);
        }
        let has_private_pool = self.inputs.iter().any(is_for_private_pool);
        let base = &self.base.prediction;
        !has_private_pool
            && self.requests.without_detail == 0
            && self.requests.freed_in_use == 0
            && base.unknown_frees == 0
            && base.first_difference.is_none()
            && base.stop.is_none()
    }

    /// The predictions assume what was available at the error.
    fn note_other_availability(&mut self) {
        for one in self.others.iter_mut().filter_map(|(_, one)| one.as_mut()).chain([&mut self.base]) {
            one.is_uncertain |= one.prediction.refusals() > 0 && one.prediction.stop.is_none();
        }
    }

    /// The verdicts, in the order of the settings.
    pub fn finish(self) -> Vec<SettingVerdict> {
        let (is_usable, availability) = (self.is_usable, &self.availability);
        let is_certain = |one: &PredictionToOom| {
            let is_limited_early = matches!(one.prediction.stop, Some(PredictionStop::Failed(_)));
            let may_differ = one.is_uncertain || one.prediction.did_address_decide();
            !may_differ
                && one.peak_reserved_bytes() <= availability.least_bytes
                && !(is_limited_early && availability.has_varied)
        };
        let verdicts = self.others.iter().map(|(scenario, one)| {
            let is_possible = scenario.exclusions(self.shared_memory.was_seen).is_empty();
            let certain = one.as_ref().filter(|one| is_usable && is_possible && is_certain(one));
            SettingVerdict {
                setting: scenario.setting.clone(),
                works: certain.and_then(PredictionToOom::outcome),
                peak_reserved_bytes: one.as_ref().map_or(0, PredictionToOom::peak_reserved_bytes),
            }
        });
        verdicts.collect()
    }
}

impl PredictionToOom {
    /// Whether the request got memory; `None` if the prediction did not come so far.
    fn outcome(&self) -> Option<bool> {
        match self.prediction.stop {
            Some(PredictionStop::Survived) => Some(true),
            Some(PredictionStop::Failed(_)) => Some(false),
            None => self.prediction.first_failure.map(|_| false),
        }
    }

    fn peak_reserved_bytes(&self) -> u64 {
        self.prediction.stat("reserved_bytes.all.peak")
    }
}

fn is_for_private_pool(input: &PredictionInput) -> bool {
    let PredictionInput::Request(timed) = input else { return false };
    match timed.request {
        Request::Alloc { pool, .. } | Request::Fail { pool, .. } => pool != 0,
        Request::ReleaseCached { only_pool } => only_pool.is_some(),
        Request::BeginPool | Request::EndPool { .. } => true,
        Request::Free { .. } | Request::Complete { .. } => false,
    }
}

/// Follows how much of the card PyTorch could have before the error.
#[derive(Debug)]
struct AvailabilityWatch {
    device: u8,
    available_bytes: u64,
    /// Driver memory at the error that PyTorch had not reserved.
    other_bytes: u64,
    driver: DriverBytes,
    /// Free bytes of the card, sampled since the last driver call.
    sampled_free_bytes: Option<u64>,
    /// The least that was available at any known moment.
    least_bytes: u64,
    /// It was not the same at all known moments.
    has_varied: bool,
}

impl AvailabilityWatch {
    fn new(oom: &FirstOom) -> Self {
        let available_bytes = oom.reserved_bytes.saturating_add(oom.free_bytes);
        Self {
            device: oom.device,
            available_bytes,
            other_bytes: oom.driver_bytes.saturating_sub(oom.reserved_bytes),
            driver: DriverBytes::new(oom.device),
            sampled_free_bytes: None,
            least_bytes: available_bytes,
            has_varied: false,
        }
    }

    /// Passes an event. Returns what was available at it, if the recording shows that.
    fn on_event(&mut self, walked: &WalkedEvent<'_>) -> Option<u64> {
        self.driver.add_changes(walked.changes);
        let event = walked.event;
        if event.device != self.device {
            return None;
        }
        match event.kind {
            EventKind::MEMORY_SAMPLE if event.aux[1] != SAMPLE_SOURCE_NVML => {
                self.sampled_free_bytes = Some(event.aux[0].saturating_sub(event.size));
                None
            }
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => self.observe(event.aux[1]),
            kind if kind.is_driver_call() => {
                self.sampled_free_bytes = None;
                None
            }
            _ => None,
        }
    }

    /// PyTorch reports a segment after the driver call for it, so its own bytes are right only at
    /// the next block.
    fn observe(&mut self, reserved_bytes: u64) -> Option<u64> {
        let sampled = self.sampled_free_bytes.take();
        let has_changed = self.driver.take_change();
        if sampled.is_none() && !has_changed {
            return None;
        }
        let other_bytes = self.driver.bytes.saturating_sub(reserved_bytes);
        let by_calls = self.available_bytes.saturating_add(self.other_bytes).saturating_sub(other_bytes);
        let available_bytes = sampled.map_or(by_calls, |free| free.saturating_add(reserved_bytes));
        self.least_bytes = self.least_bytes.min(available_bytes);
        self.has_varied |= available_bytes != self.available_bytes;
        Some(available_bytes)
    }
}

#[cfg(test)]
#[path = "first_oom_tests.rs"]
mod tests;
