//! Present memory of a running program (`replay --follow`).
//!
//! Definitions and events arrive piecewise, and an event may arrive twice: from the ring and from
//! its block. [`RunFollower`] resolves ids as they are defined, and passes events through the same
//! [`Merger`] as other replays, each sequence number once. It keeps only totals; the analyses run
//! on the whole trace after the run.
//!
//! *Growth* of a call site: the minimum of its bytes since the last view, minus its minimum between
//! two earlier views. Those are a quarter to a half of all views ago. Temporary blocks do not raise
//! a minimum, and memory from the start of the run drops out after a while.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::reader::Item;
use gpumemtrace_format::ring::{RingImage, RingRecord};
use gpumemtrace_format::{Event, EventKind, NO_DEVICE, NO_SEQ};

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::code_origin::UserCodePaths;
use crate::callsite::symbols::StackSymbols;
use crate::ingest::definitions::Definitions;
use crate::ingest::merger::{MergedSlice, Merger};
use crate::report::{DeviceBytes, GrownSite, RunView};
use crate::state::attribution::TorchLevels;
use crate::state::driver::{DriverChange, DriverState, MemoryPlace, PlaceTotals};
use crate::timeline::step_counter::StepCounter;
use crate::util::ids::{SiteId, StackId};
use crate::util::seeded_map::{SeededMap, SeededSet};

/// The bytes of one stack, and their minima.
#[derive(Clone, Copy, Debug, Default)]
struct StackMinimum {
    bytes: u64,
    /// Minimum since the last view.
    min: u64,
    /// Minima before the last two views with a number that is a power of two.
    earlier_mins: [u64; 2],
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
    state: FollowedState,
    views: u64,
    /// Times of the last two views with a number that is a power of two.
    view_times_ns: [u64; 2],
}

/// The state that events change.
#[derive(Debug, Default)]
struct FollowedState {
    autograd: AutogradTracker,
    driver: DriverState,
    totals: PlaceTotals,
    torch: BTreeMap<u8, TorchLevels>,
    /// PyTorch's blocks by device and address; without PyTorch, driver allocations by key.
    blocks: SeededMap<(u8, u64), (StackId, u64)>,
    /// Minima by stack id.
    minima: Vec<StackMinimum>,
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
            state: FollowedState::default(),
            views: 0,
            view_times_ns: [0; 2],
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
        let mut events = Vec::new();
        for record in &ring.records {
            match record {
                // An event in flight appears again once its call has returned.
                RingRecord::Event(event) if !event.in_flight => events.push(*event),
                RingRecord::Event(_) => {}
                definition => {
                    self.symbols.add_definitions(|definitions| definitions.add_record(definition));
                    self.has_new_definitions = true;
                }
            }
        }
        events.sort_by_key(|event| event.seq);
        self.add_events(events);
    }

    fn add_events(&mut self, mut events: Vec<Event>) {
        if std::mem::take(&mut self.has_new_definitions) {
            self.symbols.resolve_new();
            self.state.steps.update_names(&self.symbols);
        }
        let (next_seq, waiting) = (self.merger.next_seq(), &mut self.waiting);
        events.retain(|event| event.seq != NO_SEQ && event.seq >= next_seq && waiting.insert(event.seq));
        let (state, symbols) = (&mut self.state, &mut self.symbols);
        let _ = self.merger.push(events, &mut |MergedSlice { events, .. }| {
            for event in events {
                state.on_event(event, symbols);
            }
            ControlFlow::Continue(())
        });
        let next_seq = self.merger.next_seq();
        self.waiting.retain(|seq| *seq >= next_seq);
    }

    /// Applies all waiting events without those that are missing before them. A missing event that
    /// arrives later, because its call was in flight, is ignored.
    pub fn skip_missing_events(&mut self) {
        let (state, symbols) = (&mut self.state, &mut self.symbols);
        self.merger.skip_missing_events(&mut |MergedSlice { events, .. }| {
            for event in events {
                state.on_event(event, symbols);
            }
            ControlFlow::Continue(())
        });
        self.waiting.clear();
    }

    /// Returns the present state. Growth is measured between calls.
    pub fn take_view(&mut self) -> RunView {
        let state = &mut self.state;
        let span_ns = state.first_ns.map_or(0, |first| state.last_ns.saturating_sub(first));
        let mut devices: BTreeMap<u8, DeviceBytes> = BTreeMap::new();
        for (place, bytes) in state.totals.iter() {
            if let MemoryPlace::Device(ordinal) = place {
                devices.entry(ordinal).or_default().driver = bytes;
            }
        }
        for (ordinal, torch) in state.torch.iter().filter(|(ordinal, _)| **ordinal != NO_DEVICE) {
            let device = devices.entry(*ordinal).or_default();
            (device.allocated, device.reserved) = (Some(torch.live), Some(torch.reserved));
        }
        let steps = state.steps.count_steps(&mut self.symbols);
        let view = RunView { events: state.events, span_ns, steps, devices, grown: self.find_grown_site() };
        self.begin_next_view();
        view
    }

    /// The site with the most growth, once there are two views.
    fn find_grown_site(&self) -> Option<GrownSite> {
        let mut by_site: SeededMap<SiteId, (u64, u64)> = SeededMap::default();
        for (minimum, stack) in self.state.minima.iter().zip(0..) {
            let (min, earlier) = by_site.entry(self.symbols.stack_info(StackId(stack)).site).or_default();
            *min = min.saturating_add(minimum.min);
            *earlier = earlier.saturating_add(minimum.earlier_mins[0]);
        }
        let grown = by_site.into_iter().map(|(site, (min, earlier))| (min.saturating_sub(earlier), site));
        let (bytes, site) = grown.max_by_key(|(bytes, site)| (*bytes, std::cmp::Reverse(*site)))?;
        let span_ns = self.state.last_ns.saturating_sub(self.view_times_ns[0]);
        (bytes > 0 && self.views > 1).then(|| GrownSite {
            site: self.symbols.site(site, None),
            bytes,
            span_ns,
        })
    }

    /// Restarts the minima, and stores them if the number of this view is a power of two.
    fn begin_next_view(&mut self) {
        self.views += 1;
        let is_stored = self.views.is_power_of_two();
        for minimum in &mut self.state.minima {
            if is_stored {
                minimum.earlier_mins = [minimum.earlier_mins[1], minimum.min];
            }
            minimum.min = minimum.bytes;
        }
        if is_stored {
            self.view_times_ns = [self.view_times_ns[1], self.state.last_ns];
        }
    }
}

impl FollowedState {
    fn on_event(&mut self, event: &Event, symbols: &mut StackSymbols) {
        self.events += 1;
        self.first_ns.get_or_insert(event.time_ns);
        self.last_ns = self.last_ns.max(event.time_ns);
        let (stack, _) = self.autograd.resolve_stack(event, symbols);
        self.steps.on_event(event, stack, symbols);
        match event.kind {
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => {
                if self.torch.is_empty() {
                    // From the first block of PyTorch on, growth is that of its blocks, which lie
                    // inside driver memory.
                    self.blocks.clear();
                    self.minima.clear();
                }
                let [live, reserved] = event.aux;
                self.torch.insert(event.device, TorchLevels { reserved, live });
                let key = (event.device, event.addr);
                // Before an allocation, this removes a block with a lost free.
                self.remove_block(key);
                if event.kind == EventKind::BLOCK_ALLOC {
                    self.add_block(key, stack, event.size);
                }
            }
            kind if kind.is_driver_call() => self.on_driver_call(event, stack),
            _ => {}
        }
    }

    fn on_driver_call(&mut self, event: &Event, stack: StackId) {
        self.driver.on_driver_call(event, stack);
        for index in 0..self.driver.changes.len() {
            let change = self.driver.changes[index];
            self.totals.apply(&change);
            match change {
                _ if !self.torch.is_empty() => {}
                DriverChange::Alloc { key, place: MemoryPlace::Device(_), bytes, stack } => {
                    self.remove_block((NO_DEVICE, key));
                    self.add_block((NO_DEVICE, key), stack, bytes);
                }
                DriverChange::Alloc { .. } => {}
                DriverChange::Free { key, .. } => self.remove_block((NO_DEVICE, key)),
            }
        }
    }

    fn add_block(&mut self, key: (u8, u64), stack: StackId, bytes: u64) {
        self.blocks.insert(key, (stack, bytes));
        let minimum = self.minimum_of(stack);
        minimum.bytes = minimum.bytes.saturating_add(bytes);
    }

    fn remove_block(&mut self, key: (u8, u64)) {
        if let Some((stack, bytes)) = self.blocks.remove(&key) {
            let minimum = self.minimum_of(stack);
            minimum.bytes = minimum.bytes.saturating_sub(bytes);
            minimum.min = minimum.min.min(minimum.bytes);
        }
    }

    fn minimum_of(&mut self, stack: StackId) -> &mut StackMinimum {
        let index = stack.0 as usize;
        if index >= self.minima.len() {
            self.minima.resize(index + 1, StackMinimum::default());
        }
        &mut self.minima[index]
    }
}
