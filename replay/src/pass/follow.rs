//! What a run that goes on holds now.
//!
//! Constraint: definitions and events come in pieces, an event comes once from the ring and once from its block, and the rule of
//! steps is found late. Consequence: ids are resolved as they are defined; events go through the same [`Merger`] as in any other
//! replay, each number once; and only totals are kept. The analyses are made when the run is over, from the whole trace.
//!
//! *Growth* of a line: the least that its blocks held since the last look, minus the least of an earlier time between a look and
//! another, a quarter to a half of all looks ago. What comes and goes has a least of its own and does not show; what was there from
//! the start falls out after a while.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::reader::Item;
use gpumemtrace_format::ring::{RingImage, RingRecord};
use gpumemtrace_format::{Event, EventKind, NO_DEVICE, NO_SEQ};

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::code_origin::UserCodePaths;
use crate::callsite::symbols::{SiteId, StackId, StackSymbols};
use crate::ingest::definitions::Definitions;
use crate::ingest::merger::Merger;
use crate::report::Site;
use crate::state::driver::{DriverChange, DriverState, MemoryPlace, PlaceTotals};
use crate::timeline::step_counter::StepCounter;
use crate::util::seeded_map::{SeededMap, SeededSet};

/// Bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// In tensors and reserved by PyTorch's allocator; `None` where it was not seen.
    pub torch: Option<(u64, u64)>,
    /// Handed out by the driver.
    pub driver: u64,
}

/// A line that holds more than it did.
#[derive(Clone, Debug, PartialEq)]
pub struct GrownSite {
    /// Whose.
    pub site: Site,
    /// How much more.
    pub bytes: u64,
    /// Since how long.
    pub span_ns: u64,
}

/// The run as of a look at it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunView {
    /// Events so far.
    pub events: u64,
    /// From the first event to the last.
    pub span_ns: u64,
    /// Steps begun, if it is known what a step is.
    pub steps: Option<u32>,
    /// By ordinal.
    pub devices: BTreeMap<u8, DeviceBytes>,
    /// The line that grew most.
    pub grown: Option<GrownSite>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SiteTrack {
    now: u64,
    least: u64,
    /// The least at the two last looks whose number was a power of two.
    earlier: [u64; 2],
}

/// Follows a run.
#[derive(Debug)]
pub struct RunFollower {
    symbols: StackSymbols,
    /// Defined since ids were resolved last.
    unresolved: bool,
    merger: Merger,
    /// Numbers that were taken in and whose turn has not come.
    waiting: SeededSet<u64>,
    state: FollowedState,
    looks: u64,
    look_times_ns: [u64; 2],
}

/// What events change.
#[derive(Debug, Default)]
struct FollowedState {
    backward: AutogradTracker,
    driver: DriverState,
    totals: PlaceTotals,
    torch: BTreeMap<u8, (u64, u64)>,
    /// PyTorch's blocks by device and address; where there are none, the driver's by key.
    blocks: SeededMap<(u8, u64), (StackId, u64)>,
    holders: Vec<SiteTrack>,
    steps: StepCounter,
    events: u64,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl RunFollower {
    /// Nothing yet. For whom these paths are their own.
    pub fn new(own: UserCodePaths) -> Self {
        Self {
            symbols: StackSymbols::new(Definitions::default(), own),
            unresolved: false,
            merger: Merger::new(),
            waiting: SeededSet::default(),
            state: FollowedState::default(),
            looks: 0,
            look_times_ns: [0; 2],
        }
    }

    /// Takes what the trace has more than before.
    pub fn take(&mut self, item: Item) {
        match item {
            Item::Events(events) => self.events(events),
            item => {
                self.symbols.add_definitions(|definitions| definitions.add_item(item));
                self.unresolved = true;
            }
        }
    }

    /// Takes what is in the ring. It is to be read before the trace and given after it.
    pub fn take_ring(&mut self, ring: &RingImage) {
        let mut events = Vec::new();
        for record in &ring.records {
            match record {
                // One that is in flight comes again when it is complete.
                RingRecord::Event(event) if !event.in_flight => events.push(*event),
                RingRecord::Event(_) => {}
                definition => {
                    self.symbols.add_definitions(|definitions| definitions.add_record(definition));
                    self.unresolved = true;
                }
            }
        }
        events.sort_by_key(|event| event.seq);
        self.events(events);
    }

    fn events(&mut self, mut events: Vec<Event>) {
        if std::mem::take(&mut self.unresolved) {
            self.symbols.resolve_new();
            self.state.steps.update_names(&self.symbols);
        }
        let (next_seq, waiting) = (self.merger.next_seq(), &mut self.waiting);
        events.retain(|event| event.seq != NO_SEQ && event.seq >= next_seq && waiting.insert(event.seq));
        let (state, symbols) = (&mut self.state, &mut self.symbols);
        let _ = self.merger.push(events, &mut |events| {
            for event in events {
                state.event(event, symbols);
            }
            ControlFlow::Continue(())
        });
        let next_seq = self.merger.next_seq();
        self.waiting.retain(|seq| *seq >= next_seq);
    }

    /// Some events before those that wait will never come: what waits is not to wait for them. One that still comes, because its
    /// call had not returned, is left out.
    pub fn skip_missing_events(&mut self) {
        let (state, symbols) = (&mut self.state, &mut self.symbols);
        self.merger.skip_missing_events(&mut |events| {
            for event in events {
                state.event(event, symbols);
            }
            ControlFlow::Continue(())
        });
        self.waiting.clear();
    }

    /// The run as it is now.
    pub fn look(&mut self) -> RunView {
        let state = &mut self.state;
        let span_ns = state.first_ns.map_or(0, |first| state.last_ns.saturating_sub(first));
        let mut devices: BTreeMap<u8, DeviceBytes> = BTreeMap::new();
        for (place, bytes) in state.totals.iter() {
            if let MemoryPlace::Device(ordinal) = place {
                devices.entry(ordinal).or_default().driver = bytes;
            }
        }
        for (ordinal, torch) in state.torch.iter().filter(|(ordinal, _)| **ordinal != NO_DEVICE) {
            devices.entry(*ordinal).or_default().torch = Some(*torch);
        }
        let steps = state.steps.count_steps(&mut self.symbols);
        let view = RunView { events: state.events, span_ns, steps, devices, grown: self.grown() };
        self.remember();
        view
    }

    fn grown(&self) -> Option<GrownSite> {
        let mut by_site: SeededMap<SiteId, (u64, u64)> = SeededMap::default();
        for (holder, stack) in self.state.holders.iter().zip(0..) {
            let (least, earlier) = by_site.entry(self.symbols.stack_info(StackId(stack)).site).or_default();
            *least = least.saturating_add(holder.least);
            *earlier = earlier.saturating_add(holder.earlier[0]);
        }
        let grown = by_site.into_iter().map(|(site, (least, earlier))| (least.saturating_sub(earlier), site));
        let (bytes, site) = grown.max_by_key(|(bytes, site)| (*bytes, std::cmp::Reverse(*site)))?;
        let span_ns = self.state.last_ns.saturating_sub(self.look_times_ns[0]);
        (bytes > 0 && self.looks > 1).then(|| GrownSite {
            site: self.symbols.site(site, None),
            bytes,
            span_ns,
        })
    }

    fn remember(&mut self) {
        self.looks += 1;
        let is_kept = self.looks.is_power_of_two();
        for holder in &mut self.state.holders {
            if is_kept {
                holder.earlier = [holder.earlier[1], holder.least];
            }
            holder.least = holder.now;
        }
        if is_kept {
            self.look_times_ns = [self.look_times_ns[1], self.state.last_ns];
        }
    }
}

impl FollowedState {
    fn event(&mut self, event: &Event, symbols: &mut StackSymbols) {
        self.events += 1;
        self.first_ns.get_or_insert(event.time_ns);
        self.last_ns = self.last_ns.max(event.time_ns);
        let (stack, _) = self.backward.resolve_stack(event, symbols);
        self.steps.on_event(event, stack, symbols);
        match event.kind {
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => {
                if self.torch.is_empty() {
                    // From here on growth is that of tensors, which lie in what the driver handed out.
                    self.blocks.clear();
                    self.holders.clear();
                }
                self.torch.insert(event.device, (event.aux[0], event.aux[1]));
                let place = (event.device, event.addr);
                // One whose free was lost goes too.
                self.let_go(place);
                if event.kind == EventKind::BLOCK_ALLOC {
                    self.hold(place, stack, event.size);
                }
            }
            kind if kind.is_driver_call() => self.driver_call(event, stack),
            _ => {}
        }
    }

    fn driver_call(&mut self, event: &Event, stack: StackId) {
        self.driver.event(event, stack);
        for index in 0..self.driver.changes.len() {
            let change = self.driver.changes[index];
            self.totals.apply(&change);
            match change {
                _ if !self.torch.is_empty() => {}
                DriverChange::Alloc { key, place: MemoryPlace::Device(_), bytes, stack } => {
                    self.let_go((NO_DEVICE, key));
                    self.hold((NO_DEVICE, key), stack, bytes);
                }
                DriverChange::Alloc { .. } => {}
                DriverChange::Free { key, .. } => self.let_go((NO_DEVICE, key)),
            }
        }
    }

    fn hold(&mut self, place: (u8, u64), stack: StackId, bytes: u64) {
        self.blocks.insert(place, (stack, bytes));
        let holder = self.holder(stack);
        holder.now = holder.now.saturating_add(bytes);
    }

    fn let_go(&mut self, place: (u8, u64)) {
        if let Some((stack, bytes)) = self.blocks.remove(&place) {
            let holder = self.holder(stack);
            holder.now = holder.now.saturating_sub(bytes);
            holder.least = holder.least.min(holder.now);
        }
    }

    fn holder(&mut self, stack: StackId) -> &mut SiteTrack {
        let at = stack.0 as usize;
        if at >= self.holders.len() {
            self.holders.resize(at + 1, SiteTrack::default());
        }
        &mut self.holders[at]
    }
}
