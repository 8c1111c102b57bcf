//! Short runs for tests: the events of one device, written by hand.

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_format::event::{Detail, FLAG_FREED_AT_ONCE, SAMPLE_SOURCE_RECORDER};
use gpumemtrace_format::{Event, EventKind};
use gpumemtrace_replay::report::{BlockChange, BlockLayer, WalkedBlock, WalkedEvent};

use crate::{PredictedRow, Scenario, WhatIf, WhatIfRows};

pub(crate) const MIB: u64 = 1 << 20;

/// Events, each with its stack.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestRun {
    events: Vec<(Event, u32)>,
}

impl TestRun {
    pub(crate) fn push(&mut self, event: Event, stack: u32) -> &mut Self {
        self.events.push((Event { device: 0, ..event }, stack));
        self
    }

    pub(crate) fn events(&self) -> &[(Event, u32)] {
        &self.events
    }

    /// Two segments of 20 MiB, in which addresses decide between two free blocks of equal size. The
    /// last request fits behind one of them, but not behind the other.
    pub(crate) fn with_deciding_addresses() -> Self {
        let mut run = Self::default();
        run.sample(20, SAMPLE_SOURCE_RECORDER);
        for (addr, reserved_mib) in (1..=6).zip([20, 20, 20, 40, 40, 40]) {
            run.alloc(addr, 6, reserved_mib);
        }
        run.free(1, 40).free(4, 40);
        run.alloc(7, 6, 40).free(2, 40).alloc(8, 9, 60);
        run
    }

    /// A block of so many MiB, after which so many are reserved.
    pub(crate) fn alloc(&mut self, addr: u64, mib: u64, reserved_mib: u64) -> &mut Self {
        self.alloc_in_pool(addr, mib, reserved_mib, 0)
    }

    pub(crate) fn alloc_in_pool(&mut self, addr: u64, mib: u64, reserved_mib: u64, pool: u64) -> &mut Self {
        self.push(
            Event { detail: Some(detail(mib, pool)), ..block(EventKind::BLOCK_ALLOC, addr, reserved_mib) },
            1,
        )
    }

    pub(crate) fn free(&mut self, addr: u64, reserved_mib: u64) -> &mut Self {
        let flags = FLAG_FREED_AT_ONCE;
        self.push(Event { flags, ..block(EventKind::BLOCK_FREE, addr, reserved_mib) }, 1)
    }

    /// Frees a block that another stream still uses.
    pub(crate) fn begin_free(&mut self, addr: u64, reserved_mib: u64) -> &mut Self {
        let detail = Some(detail(0, 0));
        self.push(Event { detail, ..block(EventKind::BLOCK_FREE, addr, reserved_mib) }, 1)
    }

    /// The other stream is done.
    pub(crate) fn complete_free(&mut self, addr: u64) -> &mut Self {
        self.push(block(EventKind::BLOCK_FREE_COMPLETED, addr, 0), 1)
    }

    /// A request that fails.
    pub(crate) fn fail(&mut self, mib: u64, reserved_mib: u64) -> &mut Self {
        let event = Event { detail: Some(detail(mib, 0)), ..block(EventKind::BLOCK_OOM, 0, reserved_mib) };
        self.push(event, 1)
    }

    /// A sample of the memory in use.
    pub(crate) fn sample(&mut self, used_mib: u64, source: u64) -> &mut Self {
        let (size, aux) = (used_mib * MIB, [1024 * MIB, source]);
        self.push(Event { size, aux, ..Event::new(EventKind::MEMORY_SAMPLE) }, 1)
    }

    /// What the predictions of this run are: the recorded one, then the others.
    pub(crate) fn predict(&self, base: Scenario, others: Vec<Scenario>) -> (PredictedRow, Vec<PredictedRow>) {
        self.predict_with_orders(base, others, 0)
    }

    /// The same with this many other orders of addresses for each row.
    pub(crate) fn predict_with_orders(
        &self,
        base: Scenario,
        others: Vec<Scenario>,
        orders: u32,
    ) -> (PredictedRow, Vec<PredictedRow>) {
        let whatif = WhatIf::new(0, base, others, Vec::new()).with_orders(orders);
        let WhatIfRows { base, rows, .. } = self.pass_to(whatif);
        (base, rows)
    }

    /// What predictions are after all events of this run.
    pub(crate) fn pass_to(&self, mut whatif: WhatIf) -> WhatIfRows {
        for (seq, (event, stack)) in (0..).zip(&self.events) {
            let event = Event { seq, ..*event };
            let changes: Vec<BlockChange> = driver_change(&event).into_iter().collect();
            whatif.on_event(&WalkedEvent { changes: &changes, ..walked(&event, seq, *stack) });
        }
        whatif.finish()
    }
}

/// An event as the walk over a run passes it on.
pub(crate) fn walked(event: &Event, time_ns: u64, stack: u32) -> WalkedEvent<'_> {
    WalkedEvent { event, time_ns, step: 0, stack, site: 0, name: None, is_inside: true, changes: &[] }
}

fn block(kind: EventKind, addr: u64, reserved_mib: u64) -> Event {
    Event { addr, aux: [0, reserved_mib * MIB], ..Event::new(kind) }
}

fn detail(mib: u64, pool: u64) -> Detail {
    Detail { requested_bytes: mib * MIB, stream: 0, pool }
}

/// Settings under torch 2.`minor`, on a card of so many MiB.
pub(crate) fn scenario(setting: &str, minor: u32, card_mib: Option<u64>) -> Scenario {
    let version = TorchVersion::new(minor).expect("known");
    Scenario::new_or_refused(setting, version, card_mib.map(|mib| mib * MIB))
}

/// The change by a driver call that allocates memory.
pub(crate) fn driver_change(event: &Event) -> Option<BlockChange> {
    let is_new = event.kind == EventKind::DEVICE_ALLOC && event.result == 0;
    is_new.then_some(BlockChange::Allocated(WalkedBlock {
        layer: BlockLayer::Driver,
        device: 0,
        addr: event.addr,
        size_bytes: event.size,
        requested_bytes: None,
        stream: None,
        pool: None,
        stack: 0,
        site: 0,
        time_ns: 0,
        step: 0,
        seq: event.seq,
        thread: event.thread,
    }))
}
