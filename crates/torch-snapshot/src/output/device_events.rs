//! The events of one device, with sizes and running totals.

use std::iter::Peekable;

use gpumemtrace_format::event::{FLAG_EXISTED, FLAG_FREED_AT_ONCE, NO_POOL};
use gpumemtrace_format::{CodeId, Detail, Event, EventKind};

use super::EventOutput;
use super::exported_moments::event_of_moment;
use crate::history::{
    DeviceLayout, EndFact, HeldBlock, HistoryStart, RoundingRules, SegmentPiece, TorchDeviceHistory,
};
use crate::values::{EventAction, StoredEvent, TorchSnapshot};

/// Comparison of computed sizes with those that the file has for blocks that live to the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SizeChecks {
    pub(super) blocks: u64,
    pub(super) wrong: u64,
}

impl std::ops::Add for SizeChecks {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { blocks: self.blocks + other.blocks, wrong: self.wrong + other.wrong }
    }
}

/// Turns the events of a device into those of a trace.
pub(super) struct DeviceEvents<'a> {
    ordinal: u8,
    snapshot: &'a TorchSnapshot,
    rules: &'a RoundingRules,
    start: HistoryStart,
    events: Peekable<Box<dyn Iterator<Item = (u64, StoredEvent)> + 'a>>,
    layout: DeviceLayout,
    /// Time of the next event; `None` after the last.
    pub(super) next_ns: Option<u64>,
    pub(super) size_checks: SizeChecks,
    /// Steps, phases and marks are read from the entries of this device.
    pub(super) has_moments: bool,
}

impl<'a> DeviceEvents<'a> {
    pub(super) fn new(
        device: TorchDeviceHistory,
        snapshot: &'a TorchSnapshot,
        rules: &'a RoundingRules,
    ) -> Self {
        let events = device.runs.into_iter().flat_map(|run| snapshot.events.iter(run));
        let events: Box<dyn Iterator<Item = (u64, StoredEvent)> + 'a> = Box::new((0..).zip(events));
        let mut made = Self {
            ordinal: device.ordinal,
            snapshot,
            rules,
            start: device.start,
            events: events.peekable(),
            layout: DeviceLayout::default(),
            next_ns: None,
            size_checks: SizeChecks::default(),
            has_moments: false,
        };
        made.find_next_ns(0);
        made
    }

    /// Times never decrease; an event without one is at that of the event before.
    fn find_next_ns(&mut self, last_ns: u64) {
        let time_of =
            |event: &StoredEvent| event.time_us.map_or(last_ns, |time_us| time_us.saturating_mul(1000));
        self.next_ns = self.events.peek().map(|(_, event)| time_of(event).max(last_ns));
    }

    /// Adds the segments and blocks that existed before the first event.
    pub(super) fn add_start(&mut self, output: &mut EventOutput<'_>) {
        let segments = std::mem::take(&mut self.start.segments);
        for segment in segments {
            let kind =
                if segment.piece.is_expandable { EventKind::SEGMENT_MAP } else { EventKind::SEGMENT_ALLOC };
            self.layout.map(segment.addr, segment.piece);
            let python_stack = output.tree.node(segment.stack, self.snapshot);
            let SegmentPiece { bytes, stream, pool, .. } = segment.piece;
            let event = Event {
                device: self.ordinal,
                addr: segment.addr,
                size: bytes,
                aux: [stream, pool],
                python_stack,
                ..Event::new(kind)
            };
            output.add(Event { flags: FLAG_EXISTED, ..event }, None);
        }
        let mut blocks = std::mem::take(&mut self.start.blocks);
        // Pending blocks first: while they are allocated, the live bytes are above their sum.
        blocks.sort_by_key(|block| !block.held.is_pending);
        for block in blocks {
            let stack = output.tree.node(block.stack, self.snapshot);
            let live = HeldBlock { is_pending: false, ..block.held };
            self.layout.hold(block.addr, live);
            let event = self.block_event(EventKind::BLOCK_ALLOC, block.addr, live);
            output.add(Event { python_stack: stack, flags: FLAG_EXISTED, ..event }, None);
            if block.held.is_pending {
                self.layout.set_pending(block.addr);
                let freed = self.block_event(EventKind::BLOCK_FREE, block.addr, live);
                output.add(Event { flags: FLAG_EXISTED, ..freed }, None);
            }
        }
    }

    /// Adds the next event.
    pub(super) fn add_next(&mut self, output: &mut EventOutput<'_>) {
        let (Some(time_ns), Some((number, event))) = (self.next_ns, self.events.next()) else { return };
        let made = self.trace_event(number, &event);
        self.find_next_ns(time_ns);
        if event.action == EventAction::Annotate && self.snapshot.is_exported {
            self.add_moment(&event, time_ns, output);
            return;
        }
        let Some(made) = made else { return };
        let python_stack = output.tree.node(event.stack, self.snapshot);
        output.add(Event { python_stack, ..made }, Some(time_ns));
        let is_labelled = matches!(event.action, EventAction::Alloc | EventAction::Annotate)
            && self.layout.block_at(event.addr).is_some();
        if is_labelled && let Some(CodeId(label)) = output.label(event.label, self.snapshot) {
            let labelled =
                Event { device: self.ordinal, addr: event.addr, ..Event::new(EventKind::BLOCK_LABEL) };
            output.add(Event { aux: [u64::from(label), 0], ..labelled }, Some(time_ns));
        }
    }

    /// Adds a step, phase or mark that our export wrote. It is among the events of every device.
    fn add_moment(&self, event: &StoredEvent, time_ns: u64, output: &mut EventOutput<'_>) {
        let moment = event_of_moment(self.snapshot.texts.get(event.label), &mut output.tree);
        if let Some(moment) = moment.filter(|_| self.has_moments) {
            output.add(moment, Some(time_ns));
        }
    }

    fn trace_event(&mut self, number: u64, event: &StoredEvent) -> Option<Event> {
        match event.action {
            EventAction::Alloc => Some(self.allocate(number, event)),
            EventAction::FreeRequested => self.free(event),
            EventAction::FreeCompleted => self.complete_free(event),
            EventAction::SegmentAlloc | EventAction::SegmentMap => {
                let is_expandable = event.action == EventAction::SegmentMap;
                let pool = match self.start.end_facts.get(&number) {
                    Some(EndFact::SegmentPool(pool)) => *pool,
                    _ if is_expandable => self.pool_beside(event).unwrap_or(event.pool),
                    _ => event.pool,
                };
                let piece = SegmentPiece { bytes: event.size, stream: event.stream, pool, is_expandable };
                self.layout.map(event.addr, piece);
                let kind = if is_expandable { EventKind::SEGMENT_MAP } else { EventKind::SEGMENT_ALLOC };
                Some(self.segment_event(kind, event, pool))
            }
            EventAction::SegmentFree | EventAction::SegmentUnmap => {
                let pool = self.pool_of(event);
                self.layout.unmap(event.addr, event.size);
                let is_expandable = event.action == EventAction::SegmentUnmap;
                let kind = if is_expandable { EventKind::SEGMENT_UNMAP } else { EventKind::SEGMENT_FREE };
                Some(self.segment_event(kind, event, pool))
            }
            EventAction::Snapshot => {
                let event = self.segment_event(EventKind::TORCH_SNAPSHOT, event, event.pool);
                Some(Event { addr: 0, aux: [0, event.aux[1]], ..event })
            }
            EventAction::OutOfMemory => Some(Event {
                device: self.ordinal,
                addr: event.addr,
                size: event.size,
                aux: [self.layout.live_bytes, self.layout.reserved_bytes],
                detail: Some(Detail { requested_bytes: event.size, stream: event.stream, pool: event.pool }),
                ..Event::new(EventKind::BLOCK_OOM)
            }),
            EventAction::Annotate => {
                let pool = self.pool_of(event);
                Some(self.segment_event(EventKind::TORCH_ANNOTATE, event, pool))
            }
            EventAction::Unknown => None,
        }
    }

    fn allocate(&mut self, number: u64, event: &StoredEvent) -> Event {
        let computed = self.layout.size_at(event.addr, event.size, self.rules);
        let mut bytes = computed;
        if let Some(EndFact::BlockBytes(at_end)) = self.start.end_facts.get(&number) {
            bytes = *at_end;
            self.size_checks.blocks += 1;
            self.size_checks.wrong += u64::from(computed != bytes);
        }
        let block = HeldBlock {
            bytes: bytes.max(event.size),
            requested: event.size,
            stream: event.stream,
            pool: self.pool_of(event),
            is_pending: false,
        };
        self.layout.hold(event.addr, block);
        self.block_event(EventKind::BLOCK_ALLOC, event.addr, block)
    }

    fn free(&mut self, event: &StoredEvent) -> Option<Event> {
        let block = *self.layout.block_at(event.addr).filter(|block| !block.is_pending)?;
        let next = self.events.peek().map(|(_, next)| (next.action, next.addr));
        let is_completed =
            !self.start.shape.has_completions || next == Some((EventAction::FreeCompleted, event.addr));
        if !is_completed {
            self.layout.set_pending(event.addr);
            return Some(self.block_event(EventKind::BLOCK_FREE, event.addr, block));
        }
        if next.is_some_and(|(action, _)| action == EventAction::FreeCompleted) {
            self.events.next();
        }
        self.layout.release(event.addr);
        let freed = self.block_event(EventKind::BLOCK_FREE, event.addr, block);
        Some(Event { flags: FLAG_FREED_AT_ONCE, ..freed })
    }

    fn complete_free(&mut self, event: &StoredEvent) -> Option<Event> {
        let block = self.layout.release(event.addr)?;
        if block.is_pending {
            return Some(Event {
                device: self.ordinal,
                addr: event.addr,
                size: block.requested,
                aux: [block.stream, block.pool],
                ..Event::new(EventKind::BLOCK_FREE_COMPLETED)
            });
        }
        // The recording left out requests.
        let freed = self.block_event(EventKind::BLOCK_FREE, event.addr, block);
        Some(Event { flags: FLAG_FREED_AT_ONCE, ..freed })
    }

    /// In files without pools, that of the expandable segment which a mapped range continues. The
    /// range itself may be unmapped before the end, and then has no pool of its own.
    fn pool_beside(&self, event: &StoredEvent) -> Option<u64> {
        let beside = [event.addr.checked_sub(1), event.addr.checked_add(event.size)];
        let known = beside.into_iter().flatten().filter_map(|addr| self.layout.segment_at(addr));
        let of_segment = |piece: &SegmentPiece| piece.is_expandable && piece.stream == event.stream;
        let mut pools = known.filter(|(_, piece)| of_segment(piece)).map(|(_, piece)| piece.pool);
        pools.find(|pool| self.start.pools_from_end && *pool != NO_POOL)
    }

    /// The pool of an event; in files without pools that of the segment, if the end shows it.
    fn pool_of(&self, event: &StoredEvent) -> u64 {
        if !self.start.pools_from_end {
            return event.pool;
        }
        self.layout.segment_at(event.addr).map_or(NO_POOL, |(_, piece)| piece.pool)
    }

    fn block_event(&self, kind: EventKind, addr: u64, block: HeldBlock) -> Event {
        let HeldBlock { bytes, requested, stream, pool, .. } = block;
        Event {
            device: self.ordinal,
            addr,
            size: bytes,
            aux: [self.layout.live_bytes, self.layout.reserved_bytes],
            detail: Some(Detail { requested_bytes: requested, stream, pool }),
            ..Event::new(kind)
        }
    }

    fn segment_event(&self, kind: EventKind, event: &StoredEvent, pool: u64) -> Event {
        Event {
            device: self.ordinal,
            addr: event.addr,
            size: event.size,
            aux: [event.stream, pool],
            ..Event::new(kind)
        }
    }
}
