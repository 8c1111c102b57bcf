//! The device of a prediction: counts bytes and calls, and gives out addresses.
//!
//! Unlike the one of the crate caching-allocator, it repeats the addresses of the recording.

use std::collections::{BTreeMap, VecDeque};

use gpumemtrace_caching_allocator::{AllocatorTraceEntry, CacheBackend, DriverError, EventId, OUT_OF_MEMORY};

/// Addresses of segments begin at multiples of this, and so does the memory that they take.
const PAGE_BYTES: u64 = 2 << 20;
/// Memory of a card of unknown size. It limits nothing that a program does; expandable segments
/// take addresses by it.
const UNKNOWN_CARD_BYTES: u64 = 1 << 40;
/// First address of segments that the recording does not have.
const FIRST_OWN_ADDR: u64 = 1 << 52;
/// In a random order, each segment has such a range of addresses for itself. It holds the addresses
/// that an expandable segment reserves for the largest card.
const SLOT_BYTES: u64 = 1 << 41;
/// The number of these ranges, as a power of two.
const SLOT_BITS: u32 = 20;

/// The calls of the driver that an allocator makes, as the answer names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DriverCall {
    Malloc,
    Free,
    Reserve,
    Create,
    Release,
}

impl DriverCall {
    /// The name in the answer.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Malloc => "cudaMalloc",
            Self::Free => "cudaFree",
            Self::Reserve => "cuMemAddressReserve",
            Self::Create => "cuMemCreate",
            Self::Release => "cuMemRelease",
        }
    }
}

/// Calls of one function, and the bytes that they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallTotal {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

/// How the addresses of new segments follow each other. The driver's choice decides between free
/// blocks of equal size in different segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressOrder {
    /// As in the recording where it has such a segment, else ascending.
    AsRecorded,
    /// Each segment is anywhere between the others. Each seed has its own order.
    Random { seed: u32 },
}

/// Memory, addresses and calls of one device.
#[derive(Clone, Debug)]
pub(crate) struct PredictedDevice {
    /// Memory of the card; `None` if it is unknown, and then not limited.
    card_bytes: Option<u64>,
    /// Memory that PyTorch cannot get: contexts, libraries, other processes.
    pub(crate) outside_bytes: u64,
    /// Memory of PyTorch's segments that the program returned.
    pub(crate) asleep_bytes: u64,
    /// So many calls get no memory, as in the recording.
    pub(crate) refused_calls: u32,
    used_bytes: u64,
    /// The bytes of each segment, by address.
    segments: BTreeMap<u64, u64>,
    next_addr: u64,
    /// Slots of a random order that were taken so far.
    slots_taken: u32,
    order: AddressOrder,
    /// Segments of the recording that were not made here yet: address and bytes.
    recorded: VecDeque<(u64, u64)>,
    pub(crate) calls: BTreeMap<DriverCall, CallTotal>,
    pub(crate) segments_made: u64,
    /// Calls for which the card had too little memory.
    pub(crate) refusals: u64,
}

impl PredictedDevice {
    /// A device with this much memory.
    pub(crate) fn new(card_bytes: Option<u64>, order: AddressOrder) -> Self {
        Self {
            card_bytes,
            outside_bytes: 0,
            asleep_bytes: 0,
            refused_calls: 0,
            used_bytes: 0,
            segments: BTreeMap::new(),
            next_addr: FIRST_OWN_ADDR,
            slots_taken: 0,
            order,
            recorded: VecDeque::new(),
            calls: BTreeMap::new(),
            segments_made: 0,
            refusals: 0,
        }
    }

    /// Notes a segment of the recording. If the allocator asks for one of this size next, it gets
    /// this address, because the order of addresses decides between blocks of equal size.
    pub(crate) fn note_recorded_segment(&mut self, addr: u64, bytes: u64) {
        self.recorded.push_back((addr, bytes));
        // Other settings make other segments; old ones will not be asked for any more.
        if self.recorded.len() > 64 {
            self.recorded.pop_front();
        }
    }

    /// Counts memory that was taken before the recording began.
    pub(crate) fn adopt(&mut self, addr: u64, bytes: u64, is_expandable: bool) {
        if is_expandable {
            self.used_bytes += bytes;
        } else {
            self.used_bytes += bytes.next_multiple_of(PAGE_BYTES);
            self.segments.insert(addr, bytes);
        }
    }

    /// Whether more memory is in use than the card has.
    pub(crate) fn is_over_card(&self) -> bool {
        self.available_bytes().is_some_and(|available| self.taken_bytes() > available)
    }

    /// [`is_over_card`](Self::is_over_card) with this much outside PyTorch and asleep.
    pub(crate) fn would_be_over_card(&self, outside_bytes: u64, asleep_bytes: u64) -> bool {
        let available = self.card_bytes.map(|card| card.saturating_sub(outside_bytes));
        available.is_some_and(|available| self.used_bytes.saturating_sub(asleep_bytes) > available)
    }

    pub(crate) fn knows_card(&self) -> bool {
        self.card_bytes.is_some()
    }

    /// Bytes of the card that PyTorch's segments take.
    fn taken_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.asleep_bytes)
    }

    /// What PyTorch can have of the card; `None` if the card is unknown.
    fn available_bytes(&self) -> Option<u64> {
        self.card_bytes.map(|card| card.saturating_sub(self.outside_bytes))
    }

    fn take(&mut self, bytes: u64) -> Result<(), DriverError> {
        let after = self.used_bytes.saturating_add(bytes);
        let is_refused = self.refused_calls > 0;
        self.refused_calls = self.refused_calls.saturating_sub(1);
        let taken = self.taken_bytes().saturating_add(bytes);
        if is_refused || self.available_bytes().is_some_and(|available| taken > available) {
            self.refusals += 1;
            return Err(OUT_OF_MEMORY);
        }
        self.used_bytes = after;
        Ok(())
    }

    fn count(&mut self, call: DriverCall, count: u64, bytes: u64) {
        let total = self.calls.entry(call).or_default();
        total.count += count;
        total.bytes = total.bytes.saturating_add(bytes);
    }

    fn address_for(&mut self, bytes: u64) -> u64 {
        if self.order == AddressOrder::AsRecorded {
            let same = self
                .recorded
                .iter()
                .position(|(addr, recorded)| *recorded == bytes && self.is_vacant(*addr, bytes));
            if let Some((addr, _)) = same.and_then(|at| self.recorded.remove(at)) {
                return addr;
            }
        }
        self.next_addresses(bytes)
    }

    fn is_vacant(&self, addr: u64, bytes: u64) -> bool {
        let before = self.segments.range(..addr.saturating_add(bytes)).next_back();
        before.is_none_or(|(other, other_bytes)| other + other_bytes <= addr)
    }

    /// Addresses that no segment has had, or in a random order, that no segment has.
    fn next_addresses(&mut self, bytes: u64) -> u64 {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        match self.order {
            AddressOrder::AsRecorded => {
                self.next_addr += bytes;
                self.next_addr - bytes
            }
            AddressOrder::Random { seed } => loop {
                let addr = FIRST_OWN_ADDR + u64::from(shuffled_slot(self.slots_taken, seed)) * SLOT_BYTES;
                self.slots_taken = self.slots_taken.wrapping_add(1);
                if self.is_vacant(addr, bytes) {
                    return addr;
                }
            },
        }
    }
}

/// The slot of the `number`th segment: a permutation of all slots, which depends on the seed.
fn shuffled_slot(number: u32, seed: u32) -> u32 {
    const MASK: u32 = (1 << SLOT_BITS) - 1;
    let mut slot = number.wrapping_add(seed.wrapping_mul(0x9e37_79b1));
    // Odd factors and shifts to the right can be undone within the mask, so no slot comes twice.
    for factor in [0x2c1b_3c6d, 0x297a_2d39, 0x85eb_ca6b] {
        slot = slot.wrapping_mul(factor) & MASK;
        slot ^= slot >> (SLOT_BITS / 2);
    }
    slot
}

impl CacheBackend for PredictedDevice {
    fn alloc(&mut self, bytes: u64, _during_capture: bool) -> Result<u64, DriverError> {
        self.count(DriverCall::Malloc, 1, bytes);
        self.take(bytes.next_multiple_of(PAGE_BYTES))?;
        let addr = self.address_for(bytes);
        self.segments.insert(addr, bytes);
        self.segments_made += 1;
        Ok(addr)
    }

    fn free(&mut self, addr: u64) {
        let bytes = self.segments.remove(&addr).unwrap_or(0);
        self.used_bytes -= bytes.next_multiple_of(PAGE_BYTES);
        self.count(DriverCall::Free, 1, bytes);
    }

    /// Never called: the recording says when the events of a block completed.
    fn record_event(&mut self, _stream: u64) -> Result<EventId, DriverError> {
        Ok(EventId(0))
    }

    fn is_event_done(&mut self, _event: EventId) -> bool {
        true
    }

    fn wait_for_event(&mut self, _event: EventId) -> bool {
        true
    }

    fn recycle_event(&mut self, _event: EventId) {}

    fn trace(&mut self, _entry: AllocatorTraceEntry) {}

    fn device_bytes(&mut self) -> u64 {
        self.card_bytes.unwrap_or(UNKNOWN_CARD_BYTES)
    }

    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DriverError> {
        self.count(DriverCall::Reserve, 1, bytes);
        Ok(self.next_addresses(bytes))
    }

    fn map(&mut self, _addr: u64, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        self.take(bytes)?;
        self.count(DriverCall::Create, bytes.div_ceil(page_bytes), bytes);
        self.segments_made += 1;
        Ok(())
    }

    fn unmap(&mut self, _addr: u64, bytes: u64, page_bytes: u64, _stream: u64) {
        self.used_bytes -= bytes;
        self.count(DriverCall::Release, bytes.div_ceil(page_bytes), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_order_gives_each_slot_once() {
        let mut slots: Vec<u32> = (0..1 << SLOT_BITS).map(|number| shuffled_slot(number, 7)).collect();
        let ascending = slots.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!(ascending.abs_diff(1 << (SLOT_BITS - 1)) < 1 << (SLOT_BITS - 7), "{ascending}");
        slots.sort_unstable();
        assert!((0..1 << SLOT_BITS).eq(slots));
    }

    #[test]
    fn seeds_have_different_orders() {
        let addresses = |seed| {
            let mut device = PredictedDevice::new(None, AddressOrder::Random { seed });
            [(); 4].map(|()| device.alloc(20 << 20, false).expect("memory"))
        };
        assert_eq!(addresses(1), addresses(1));
        assert_ne!(addresses(1), addresses(2));
    }
}
