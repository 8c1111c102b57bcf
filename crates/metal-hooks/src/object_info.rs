//! What the hooks remember of each live object, and the running totals per device.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::devices::MAX_DEVICES;
use crate::events::{MetalEvent, MetalEventKind};
use crate::object_table::{InsertResult, ObjectTable, ObjectWords};
use crate::runtime::ObjcId;

/// Stands for an unknown device number.
pub(crate) const UNKNOWN_DEVICE: u64 = 0xff;

static LIVE_OBJECTS: ObjectTable = ObjectTable::new();
/// Bytes in blocks and in heaps, by device; the last entry is for unknown devices.
static TOTALS: [[AtomicU64; 2]; MAX_DEVICES + 1] =
    [const { [AtomicU64::new(0), AtomicU64::new(0)] }; MAX_DEVICES + 1];

/// A recorded object, from its creation to its end.
#[derive(Clone, Copy)]
pub(crate) struct ObjectInfo {
    /// Address assigned by `synthetic_addr`.
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// The kind of its creation.
    pub(crate) kind: MetalEventKind,
    /// Device number or [`UNKNOWN_DEVICE`].
    pub(crate) device: u64,
    /// True if `addr` lies inside the range of its heap.
    pub(crate) is_in_heap_range: bool,
}

impl ObjectInfo {
    /// Looks up a live object.
    pub(crate) fn find(object: ObjcId) -> Option<Self> {
        LIVE_OBJECTS.get(object as u64).map(Self::from_words)
    }

    /// Remembers a new object. False if there is no room: its end will not be recorded.
    pub(crate) fn remember(self, object: ObjcId) -> bool {
        LIVE_OBJECTS.insert(object as u64, self.to_words()) != InsertResult::Full
    }

    /// Forgets an object. `None` if it is unknown or another caller has removed it.
    pub(crate) fn forget(object: ObjcId) -> Option<Self> {
        LIVE_OBJECTS.remove(object as u64).map(Self::from_words)
    }

    /// The words of the object table: address; bytes; kind, device and `is_in_heap_range`.
    fn to_words(self) -> ObjectWords {
        let rest = self.kind as u64 | self.device << 8 | u64::from(self.is_in_heap_range) << 16;
        [self.addr, self.bytes, rest]
    }

    fn from_words([addr, bytes, rest]: ObjectWords) -> Self {
        let kinds = [
            MetalEventKind::HeapCreated,
            MetalEventKind::BlockCreated,
            MetalEventKind::DirectCreated,
            MetalEventKind::Imported,
        ];
        let kind = kinds.into_iter().find(|kind| *kind as u64 == rest & 0xff);
        let kind = kind.unwrap_or(MetalEventKind::DirectCreated);
        Self { addr, bytes, kind, device: rest >> 8 & 0xff, is_in_heap_range: rest >> 16 & 1 == 1 }
    }

    /// An event about the object, with the current totals of its device.
    pub(crate) fn event(self, kind: MetalEventKind, method: usize) -> MetalEvent {
        MetalEvent {
            kind,
            method,
            device: u8::try_from(self.device).ok().filter(|device| u64::from(*device) != UNKNOWN_DEVICE),
            addr: self.addr,
            bytes: self.bytes,
            is_estimated: false,
            has_failed: false,
            numbers: [0; 2],
            totals: self.device_totals().each_ref().map(|bytes| bytes.load(Ordering::Relaxed)),
        }
    }

    /// Adds the object's bytes to the totals of its device, and returns the new totals.
    pub(crate) fn add_to_totals(self) -> [u64; 2] {
        self.change_totals(u64::wrapping_add)
    }

    /// Subtracts the object's bytes from the totals of its device, and returns the new totals.
    pub(crate) fn subtract_from_totals(self) -> [u64; 2] {
        self.change_totals(u64::wrapping_sub)
    }

    fn change_totals(self, change: fn(u64, u64) -> u64) -> [u64; 2] {
        let totals = self.device_totals();
        let delta = |counts: bool| change(0, if counts { self.bytes } else { 0 });
        let blocks = delta(self.kind == MetalEventKind::BlockCreated);
        let heaps = delta(self.kind == MetalEventKind::HeapCreated);
        [(0, blocks), (1, heaps)]
            .map(|(at, delta)| totals[at].fetch_add(delta, Ordering::Relaxed).wrapping_add(delta))
    }

    fn device_totals(self) -> &'static [AtomicU64; 2] {
        &TOTALS[(self.device as usize).min(MAX_DEVICES)]
    }
}
