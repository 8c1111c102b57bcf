//! A device with little memory, which refuses what the rules forbid: a segment given back twice or during a capture, an event
//! asked or recorded during one, or forgotten before it is done.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::cache::{Entry, EventId, Failure, Host, OUT_OF_MEMORY};

pub(super) const STREAMS: u64 = 4;
pub(super) const CAPACITY_BYTES: u64 = 512 << 20;

/// What the cache did to its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Alloc(u64, u64),
    Free(u64),
    Mark(u64, EventId),
}

#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) segments: BTreeMap<u64, u64>,
    pub(super) used_bytes: u64,
    pub(super) capturing: bool,
    pub(super) queues: [VecDeque<EventId>; STREAMS as usize],
    pub(super) not_done: BTreeSet<u64>,
    pub(super) last_event: u64,
    pub(super) calls: Vec<Call>,
    pub(super) told: Vec<Entry>,
}

impl Device {
    pub(super) fn complete_up_to(&mut self, event: EventId) {
        let queue =
            self.queues.iter_mut().find(|queue| queue.contains(&event)).expect("an event of a stream");
        while let Some(front) = queue.pop_front() {
            self.not_done.remove(&front.0);
            if front == event {
                break;
            }
        }
    }
}

impl Host for Device {
    fn alloc(&mut self, bytes: u64, during_capture: bool) -> Result<u64, Failure> {
        assert_eq!(during_capture, self.capturing);
        if self.used_bytes + bytes > CAPACITY_BYTES {
            return Err(OUT_OF_MEMORY);
        }
        // The lowest gap: addresses come back.
        let mut addr = 0x1_0000_0000;
        for (start, len) in &self.segments {
            if start - addr >= bytes {
                break;
            }
            addr = start + len;
        }
        self.used_bytes += bytes;
        self.segments.insert(addr, bytes);
        self.calls.push(Call::Alloc(addr, bytes));
        Ok(addr)
    }

    fn free(&mut self, addr: u64) {
        assert!(!self.capturing, "nothing is given back during a capture");
        self.used_bytes -= self.segments.remove(&addr).expect("a segment, once");
        self.calls.push(Call::Free(addr));
    }

    fn mark(&mut self, stream: u64) -> Result<EventId, Failure> {
        assert!(!self.capturing, "no event is recorded during a capture");
        self.last_event += 1;
        let event = EventId(self.last_event);
        self.queues[stream as usize].push_back(event);
        self.not_done.insert(event.0);
        self.calls.push(Call::Mark(stream, event));
        Ok(event)
    }

    fn is_done(&mut self, event: EventId) -> bool {
        assert!(!self.capturing, "no event is asked during a capture");
        !self.not_done.contains(&event.0)
    }

    fn wait(&mut self, event: EventId) -> bool {
        if self.not_done.contains(&event.0) {
            self.complete_up_to(event);
        }
        true
    }

    fn forget(&mut self, event: EventId) {
        assert!(!self.not_done.contains(&event.0), "an event is forgotten when it is done");
    }

    fn tell(&mut self, entry: Entry) {
        self.told.push(entry);
    }
}
