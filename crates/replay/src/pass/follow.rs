//! Present memory of a running program (`replay --follow`, `serve-metrics`).
//!
//! Definitions and events arrive piecewise, and an event may arrive twice: from the ring and from
//! its block. [`RunFollower`] resolves ids as they are defined, and passes events through the same
//! [`Merger`] as other replays, each sequence number once. It keeps only totals.
//!
//! A number may come late: its call is still in the driver (`cudaFree` waits for the GPU). It may
//! never come: its thread was cancelled. So numbers in flight are passed over, and so are missing
//! ones that were given out two readings of the ring ago. If such an event comes, it is applied
//! then. An allocation at the address of a free in flight shows that the free has taken effect.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use gpumemtrace_format::event::SAMPLE_SOURCE_NVML;
use gpumemtrace_format::reader::Item;
use gpumemtrace_format::ring::{RingImage, RingRecord};
use gpumemtrace_format::{Event, EventKind, NO_DEVICE, NO_SEQ};

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::code_origin::UserCodePaths;
use crate::callsite::symbols::StackSymbols;
use crate::ingest::definitions::Definitions;
use crate::ingest::merger::Merger;
use crate::pass::followed_device::FollowedDevice;
use crate::report::{DeviceBytes, DeviceGauges, RunGauges, RunView};
use crate::state::async_pools::AsyncPools;
use crate::state::attribution::TorchLevels;
use crate::state::driver::{DriverChange, DriverState, MemoryPlace, PlaceTotals};
use crate::timeline::step_counter::StepCounter;
use crate::util::ids::StackId;
use crate::util::seeded_map::{SeededMap, SeededSet};

/// A live block of PyTorch.
#[derive(Clone, Copy, Debug)]
struct FollowedBlock {
    bytes: u64,
    requested: Option<u64>,
}

/// Maintains the state of a running program from the new contents of its trace.
#[derive(Debug)]
pub struct RunFollower {
    symbols: StackSymbols,
    /// Definitions were added since ids were resolved last.
    has_new_definitions: bool,
    merger: Merger,
    /// Sequence numbers that wait in the merger.
    waiting: SeededSet<u64>,
    passed_over: PassedOver,
    state: FollowedState,
    /// The most steps that were counted.
    max_steps: Option<u32>,
}

/// Numbers that the merger no longer waits for.
#[derive(Debug, Default)]
struct PassedOver {
    /// Ranges by their begin. Those of a large gap are one range.
    ranges: BTreeMap<u64, u64>,
    /// The records of calls in flight in these ranges.
    in_flight: SeededMap<u64, Event>,
    /// How many numbers had been given out at the last two readings of the ring, older first.
    given_out: [u64; 2],
}

impl PassedOver {
    /// Notes as many of the awaited numbers as may be passed over now. Returns where they end.
    fn note(&mut self, awaited: &Range<u64>, calls: &SeededMap<u64, Event>) -> Option<u64> {
        let end = if calls.contains_key(&awaited.start) { awaited.start + 1 } else { self.given_out[0] };
        let end = end.min(awaited.end);
        if end <= awaited.start {
            return None;
        }
        self.ranges.insert(awaited.start, end);
        let noted = calls.iter().filter(|(seq, _)| (awaited.start..end).contains(seq));
        self.in_flight.extend(noted.map(|(seq, call)| (*seq, *call)));
        Some(end)
    }

    /// True, once, for a number that was passed over and has come.
    fn take(&mut self, seq: u64) -> bool {
        let Some((begin, end)) = self.ranges.range(..=seq).next_back().map(|(begin, end)| (*begin, *end))
        else {
            return false;
        };
        if seq >= end {
            return false;
        }
        self.ranges.remove(&begin);
        for (from, to) in [(begin, seq), (seq + 1, end)] {
            if from < to {
                self.ranges.insert(from, to);
            }
        }
        self.in_flight.remove(&seq);
        true
    }

    /// Takes the free in flight whose address `event` hands out again.
    fn take_free_before(&mut self, event: &Event) -> Option<Event> {
        let hands_out =
            event.kind.is_driver_call() && !event.kind.is_ordered_before_call() && event.result == 0;
        if self.in_flight.is_empty() || !hands_out {
            return None;
        }
        let is_free = |call: &Event| call.kind.is_ordered_before_call() && call.addr == event.addr;
        let free = *self.in_flight.values().find(|call| is_free(call))?;
        self.take(free.seq);
        Some(Event { in_flight: false, result: 0, ..free })
    }

    /// Numbers that were not in flight.
    fn missing(&self) -> u64 {
        let all = self.ranges.iter().fold(0u64, |sum, (begin, end)| sum.saturating_add(end - begin));
        all.saturating_sub(self.in_flight.len() as u64)
    }
}

/// The state that events change.
#[derive(Debug, Default)]
struct FollowedState {
    autograd: AutogradTracker,
    driver: DriverState,
    totals: PlaceTotals,
    devices: BTreeMap<u8, FollowedDevice>,
    /// What driver pools keep free is in use, but neither allocated nor unaccounted.
    pools: AsyncPools,
    /// PyTorch's blocks by device and address.
    blocks: SeededMap<(u8, u64), FollowedBlock>,
    steps: StepCounter,
    events: u64,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl RunFollower {
    /// A follower of a run without events so far. `user_code` are additional paths of user code.
    pub fn new(user_code: UserCodePaths) -> Self {
        Self {
            symbols: StackSymbols::new(Definitions::default(), user_code),
            has_new_definitions: false,
            merger: Merger::new(),
            waiting: SeededSet::default(),
            passed_over: PassedOver::default(),
            state: FollowedState::default(),
            max_steps: None,
        }
    }

    /// Adds the next item of the trace.
    pub fn add_item(&mut self, item: Item) {
        match item {
            Item::Events(events) => self.add_events(events),
            item => {
                self.symbols.add_definitions(|definitions| definitions.add_item(item));
                self.has_new_definitions = true;
            }
        }
    }

    /// Adds the records of the ring. Read the ring before the trace's new items, and add it after
    /// them; no record is then missed.
    pub fn add_ring(&mut self, ring: &RingImage) {
        let (mut events, mut in_flight) = (Vec::new(), SeededMap::default());
        for record in &ring.records {
            match record {
                RingRecord::Event(event) if event.in_flight => {
                    in_flight.insert(event.seq, *event);
                }
                RingRecord::Event(event) => events.push(*event),
                definition => {
                    self.symbols.add_definitions(|definitions| definitions.add_record(definition));
                    self.has_new_definitions = true;
                }
            }
        }
        events.sort_by_key(|event| event.seq);
        self.add_events(events);
        let Self { merger, passed_over, state, symbols, .. } = self;
        while let Some(end) = merger.awaited().and_then(|awaited| passed_over.note(&awaited, &in_flight)) {
            merger.pass_over_to(end, &mut |slice| {
                state.on_events(slice.events, passed_over, symbols);
                ControlFlow::Continue(())
            });
        }
        passed_over.given_out = [passed_over.given_out[1], ring.next_seq];
        self.forget_placed();
    }

    fn add_events(&mut self, mut events: Vec<Event>) {
        if std::mem::take(&mut self.has_new_definitions) {
            self.symbols.resolve_new();
            self.state.steps.update_names(&self.symbols);
        }
        let (next_seq, waiting) = (self.merger.next_seq(), &mut self.waiting);
        let Self { merger, passed_over, state, symbols, .. } = self;
        let came_late: Vec<Event> =
            events.iter().filter(|event| passed_over.take(event.seq)).copied().collect();
        state.on_events(&came_late, passed_over, symbols);
        events.retain(|event| event.seq != NO_SEQ && event.seq >= next_seq && waiting.insert(event.seq));
        let _ = merger.push(events, &mut |slice| {
            state.on_events(slice.events, passed_over, symbols);
            ControlFlow::Continue(())
        });
        self.forget_placed();
    }

    /// Forgets numbers that wait no more.
    fn forget_placed(&mut self) {
        let next_seq = self.merger.next_seq();
        self.waiting.retain(|seq| *seq >= next_seq);
    }

    /// Applies all waiting events without those that are missing before them. A missing event that
    /// arrives later, because its call was in flight, is ignored.
    pub fn skip_missing_events(&mut self) {
        let Self { merger, passed_over, state, symbols, .. } = self;
        merger.skip_missing_events(&mut |slice| {
            state.on_events(slice.events, passed_over, symbols);
            ControlFlow::Continue(())
        });
        self.waiting.clear();
    }

    /// Returns the present state.
    pub fn take_view(&mut self) -> RunView {
        let state = &mut self.state;
        let span_ns = state.first_ns.map_or(0, |first| state.last_ns.saturating_sub(first));
        let mut devices: BTreeMap<u8, DeviceBytes> = BTreeMap::new();
        for (place, bytes) in state.totals.iter() {
            if let MemoryPlace::Device(ordinal) = place {
                devices.entry(ordinal).or_default().driver = bytes;
            }
        }
        for (ordinal, device) in state.devices.iter().filter(|(ordinal, _)| **ordinal != NO_DEVICE) {
            let Some(torch) = device.torch_levels() else { continue };
            let device = devices.entry(*ordinal).or_default();
            (device.allocated, device.reserved) = (Some(torch.live), Some(torch.reserved));
        }
        for (ordinal, bytes) in &mut devices {
            bytes.total = state.devices.get(ordinal).and_then(|device| device.total_bytes);
        }
        let steps = state.steps.count_steps(&mut self.symbols);
        RunView { events: state.events, span_ns, steps, devices }
    }

    /// The next sequence number to apply: all events with lower ones were applied, or skipped.
    pub fn next_seq(&self) -> u64 {
        self.merger.next_seq()
    }

    /// Reads the present state for monitoring; the maxima begin anew. Maxima of earlier readings
    /// are included until a reading is `confirmed`: until the one before this has reached its
    /// reader.
    pub fn read_gauges(&mut self, confirmed: bool) -> RunGauges {
        let state = &mut self.state;
        self.max_steps = self.max_steps.max(state.steps.count_steps(&mut self.symbols));
        let devices = state.devices.iter_mut().filter(|(ordinal, _)| **ordinal != NO_DEVICE);
        let devices = devices.map(|(ordinal, device)| {
            let reading = device.read(confirmed);
            let gauges = DeviceGauges {
                allocated: reading.torch.map(|(allocated, _)| allocated),
                reserved: reading.torch.map(|(_, reserved)| reserved),
                requested: reading.requested,
                driver: reading.driver,
                total_bytes: device.total_bytes,
                growth_per_step: state.steps.growth_of(*ordinal),
                ooms: device.ooms,
                last_oom_ns: device.last_oom_ns,
                unaccounted: reading.unaccounted,
            };
            (*ordinal, gauges)
        });
        RunGauges {
            events: state.events,
            missing_events: self.merger.missing().saturating_add(self.passed_over.missing()),
            steps: self.max_steps,
            last_event_ns: state.first_ns.map(|_| state.last_ns),
            devices: devices.collect(),
        }
    }
}

impl FollowedState {
    fn on_events(&mut self, events: &[Event], passed_over: &mut PassedOver, symbols: &mut StackSymbols) {
        for event in events {
            if let Some(free) = passed_over.take_free_before(event) {
                self.on_event(&free, symbols);
            }
            self.on_event(event, symbols);
        }
    }

    fn on_event(&mut self, event: &Event, symbols: &mut StackSymbols) {
        self.events += 1;
        self.first_ns.get_or_insert(event.time_ns);
        self.last_ns = self.last_ns.max(event.time_ns);
        let (stack, _) = self.autograd.resolve_stack(event, symbols);
        self.steps.on_event(event, stack, symbols);
        match event.kind {
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => {
                let [live, reserved] = event.aux;
                self.devices
                    .entry(event.device)
                    .or_default()
                    .set_torch_levels(TorchLevels { reserved, live });
                let key = (event.device, event.addr);
                // Before an allocation, this removes a block with a lost free.
                self.remove_block(key);
                if event.kind == EventKind::BLOCK_ALLOC {
                    let requested = event.detail.map(|detail| detail.requested_bytes);
                    self.add_block(key, FollowedBlock { bytes: event.size, requested });
                }
            }
            EventKind::SEGMENT_ALLOC
            | EventKind::SEGMENT_FREE
            | EventKind::SEGMENT_MAP
            | EventKind::SEGMENT_UNMAP => {
                self.devices.entry(event.device).or_default().on_segment_event(event, stack);
            }
            EventKind::BLOCK_OOM => {
                self.devices.entry(event.device).or_default().add_oom(event.time_ns);
            }
            EventKind::MEMORY_SAMPLE if event.result == 0 && !event.in_flight => {
                let [total, source] = event.aux;
                let pooled = self.pools.kept_bytes(event.device);
                let device = self.devices.entry(event.device).or_default();
                device.add_sample(event, pooled);
                if source != SAMPLE_SOURCE_NVML && total > 0 {
                    device.total_bytes = Some(total);
                }
            }
            kind if kind.is_driver_call() => self.on_driver_call(event, stack),
            _ => {}
        }
    }

    fn on_driver_call(&mut self, event: &Event, stack: StackId) {
        self.driver.on_driver_call(event, stack);
        self.pools.on_driver_call(event, event.time_ns);
        for index in 0..self.driver.changes.len() {
            let change = self.driver.changes[index];
            self.totals.apply(&change);
            let (DriverChange::Alloc { place, .. } | DriverChange::Free { place, .. }) = change;
            if let MemoryPlace::Device(ordinal) = place {
                let bytes = self.totals.bytes_in(place);
                self.devices.entry(ordinal).or_default().set_driver_bytes(bytes, event);
            }
        }
    }

    fn add_block(&mut self, key: (u8, u64), block: FollowedBlock) {
        self.blocks.insert(key, block);
        self.devices.entry(key.0).or_default().add_block(block.bytes, block.requested);
    }

    fn remove_block(&mut self, key: (u8, u64)) {
        if let Some(block) = self.blocks.remove(&key) {
            self.devices.entry(key.0).or_default().remove_block(block.bytes, block.requested);
        }
    }
}
