//! How much of a device PyTorch cannot get: contexts, libraries, other processes.
//!
//! A sample of the memory in use shows it at one moment. From then on, recorded driver calls show
//! how much more libraries took, such as cuBLAS for a handle. These calls need memory, too.

use std::collections::{BTreeMap, HashMap};

use gpumemtrace_format::event::SAMPLE_SOURCE_NVML;
use gpumemtrace_format::{Event, EventKind, ThreadId};
use gpumemtrace_replay::SleepingSegments;
use gpumemtrace_replay::report::{BlockChange, BlockLayer, WalkedBlock, WalkedEvent};

use crate::requests::OUT_OF_MEMORY;

/// Memory of a device in recorded driver calls.
#[derive(Debug)]
pub(crate) struct DriverBytes {
    device: u8,
    pub(crate) bytes: u64,
    /// The same memory in pages of the card ([`card_bytes_of`]).
    card_bytes: u64,
    has_changed: bool,
}

impl DriverBytes {
    pub(crate) fn new(device: u8) -> Self {
        Self { device, bytes: 0, card_bytes: 0, has_changed: false }
    }

    /// Whether a block is memory of this device.
    fn counts(&self, block: &WalkedBlock) -> bool {
        block.layer == BlockLayer::Driver && block.device == self.device
    }

    /// Whether a driver call changed it since the last question.
    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    pub(crate) fn add_changes(&mut self, changes: &[BlockChange]) {
        for change in changes {
            let (BlockChange::Allocated(block) | BlockChange::Freed(block) | BlockChange::Lost(block)) =
                change;
            if !self.counts(block) {
                continue;
            }
            self.has_changed = true;
            let (bytes, card_bytes) = (block.size_bytes, card_bytes_of(block.size_bytes));
            let is_new = matches!(change, BlockChange::Allocated(_));
            let add = if is_new { u64::saturating_add } else { u64::saturating_sub };
            self.bytes = add(self.bytes, bytes);
            self.card_bytes = add(self.card_bytes, card_bytes);
        }
    }
}

/// What a driver call takes from the card, as measured on an H200 (docs/gpu-validation.md,
/// `device_memory`): from 1 MiB on, whole pages of 2 MiB. Smaller ones share pages.
fn card_bytes_of(bytes: u64) -> u64 {
    const PAGE_BYTES: u64 = 2 << 20;
    if bytes < PAGE_BYTES / 2 { bytes } else { bytes.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1) }
}

/// A driver call of a library, or of the program itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LibraryCall {
    pub(crate) bytes: u64,
    pub(crate) time_ns: u64,
    pub(crate) step: u32,
    pub(crate) stack: u32,
    /// Its place among the events.
    pub(crate) seq: u64,
}

/// Memory of the card that PyTorch cannot get, and what it holds without using the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutsideMemory {
    /// Contexts, libraries, other processes.
    pub(crate) bytes: u64,
    /// Segments of PyTorch whose memory the program returned ([`SleepingSegments`]).
    pub(crate) asleep_bytes: u64,
    /// The call that made it so. It must get its memory, and PyTorch releases none for it.
    pub(crate) call: Option<LibraryCall>,
}

/// A driver call of which it is unknown yet whether it is for PyTorch.
#[derive(Clone, Copy, Debug)]
struct OpenCall {
    key: u64,
    thread: ThreadId,
    card_bytes: u64,
    call: LibraryCall,
}

/// The open calls in their order.
#[derive(Debug, Default)]
struct OpenCalls {
    by_number: BTreeMap<u64, OpenCall>,
    /// Numbers by the key of the allocation.
    numbers: HashMap<u64, u64>,
    next_number: u64,
    /// Sum of the calls.
    card_bytes: u64,
}

impl OpenCalls {
    fn push(&mut self, open: OpenCall) {
        self.take(open.key);
        self.numbers.insert(open.key, self.next_number);
        self.card_bytes = self.card_bytes.saturating_add(open.card_bytes);
        self.by_number.insert(self.next_number, open);
        self.next_number += 1;
    }

    /// Takes the call that allocated `key`.
    fn take(&mut self, key: u64) -> Option<OpenCall> {
        let number = self.numbers.remove(&key)?;
        let open = self.by_number.remove(&number)?;
        self.card_bytes = self.card_bytes.saturating_sub(open.card_bytes);
        Some(open)
    }

    fn take_first_of(&mut self, thread: Option<ThreadId>) -> Option<OpenCall> {
        let mut calls = self.by_number.values();
        let key = calls.find(|open| thread.is_none_or(|thread| open.thread == thread))?.key;
        self.take(key)
    }

    fn take_last_of(&mut self, thread: ThreadId) -> Option<OpenCall> {
        let key = self.by_number.values().rfind(|open| open.thread == thread)?.key;
        self.take(key)
    }
}

/// Follows the memory of a device outside PyTorch's segments.
///
/// PyTorch reports a segment right after the driver calls for it. So the calls of a thread before
/// a segment event are for PyTorch, up to the bytes of the segment. All others are of libraries.
/// PyTorch holds the lock of its allocator meanwhile, so a block event of any thread ends the wait
/// for a segment. With `release_lock_on_cudamalloc` it may end it too early.
#[derive(Debug)]
pub(crate) struct OutsideWatch {
    driver: DriverBytes,
    sleeping: SleepingSegments,
    /// Sum of PyTorch's segments, as of the last segment or block event.
    reserved_bytes: u64,
    open_calls: OpenCalls,
    /// Threads to which the driver refused memory since their last block.
    refused: Vec<ThreadId>,
    /// Memory in use at the last sample that was in no recorded driver call. It is negative if a
    /// sample misses memory, such as that of a pool.
    unrecorded_bytes: Option<i64>,
    /// A sample, or memory that fell asleep, since the last change.
    is_outdated: bool,
    changes: Vec<OutsideMemory>,
}

impl OutsideWatch {
    pub(crate) fn new(device: u8) -> Self {
        Self {
            driver: DriverBytes::new(device),
            sleeping: SleepingSegments::default(),
            reserved_bytes: 0,
            open_calls: OpenCalls::default(),
            refused: Vec::new(),
            unrecorded_bytes: None,
            is_outdated: false,
            changes: Vec::new(),
        }
    }

    /// Whether the recording has shown it.
    pub(crate) fn is_known(&self) -> bool {
        self.unrecorded_bytes.is_some()
    }

    /// What is outside PyTorch's segments, where the last event may have changed it.
    pub(crate) fn changes(&self) -> &[OutsideMemory] {
        &self.changes
    }

    /// Passes an event; [`changes`](Self::changes) has what it changes.
    pub(crate) fn on_event(&mut self, walked: &WalkedEvent<'_>) {
        self.changes.clear();
        self.driver.add_changes(walked.changes);
        let event = walked.event;
        if event.kind.is_driver_call() {
            self.on_driver_call(walked);
        }
        if event.device != self.driver.device {
            return;
        }
        match event.kind {
            // NVML shows what this process uses, not what the card has left.
            EventKind::MEMORY_SAMPLE if event.aux[1] != SAMPLE_SOURCE_NVML => {
                self.unrecorded_bytes = Some(signed(event.size) - signed(self.driver.card_bytes));
                self.is_outdated = true;
            }
            EventKind::SEGMENT_ALLOC | EventKind::SEGMENT_MAP => {
                self.sleeping.on_event(event);
                self.close_calls_of_segment(event);
                self.reserved_bytes = self.reserved_bytes.saturating_add(event.size);
                self.close_calls(Some(event.thread));
            }
            EventKind::SEGMENT_FREE | EventKind::SEGMENT_UNMAP => {
                self.sleeping.on_event(event);
                self.reserved_bytes = self.reserved_bytes.saturating_sub(event.size);
            }
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE | EventKind::BLOCK_OOM => {
                self.reserved_bytes = event.aux[1];
                self.refused.retain(|thread| *thread != event.thread);
                self.close_calls(None);
                let is_outdated = std::mem::take(&mut self.is_outdated);
                if self.driver.take_change() || is_outdated {
                    self.push_change(None);
                }
            }
            _ => {}
        }
    }

    /// The calls that were still open when the recording ended are of libraries.
    pub(crate) fn finish(&mut self) {
        self.changes.clear();
        self.close_calls(None);
    }

    fn on_driver_call(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        if event.result == OUT_OF_MEMORY && !self.refused.contains(&event.thread) {
            self.refused.push(event.thread);
        }
        for change in walked.changes {
            match change {
                BlockChange::Allocated(block) if self.driver.counts(block) => {
                    let WalkedBlock { size_bytes: bytes, time_ns, step, stack, seq, .. } = *block;
                    let call = LibraryCall { bytes, time_ns, step, stack, seq };
                    let card_bytes = card_bytes_of(bytes);
                    self.open_calls.push(OpenCall {
                        key: block.addr,
                        thread: event.thread,
                        card_bytes,
                        call,
                    });
                }
                BlockChange::Freed(block) | BlockChange::Lost(block) if self.driver.counts(block) => {
                    self.on_early_free(block.addr);
                }
                _ => {}
            }
        }
        // Memory for a segment that sleeps is PyTorch's, and no request of its allocator.
        let wakes = event.kind == EventKind::MAP && self.sleeping.is_segment(event);
        if wakes {
            self.close_calls_of_segment(event);
        }
        if self.sleeping.on_event(event) {
            let WalkedEvent { time_ns, step, stack, .. } = *walked;
            let call = LibraryCall { bytes: event.size, time_ns, step, stack, seq: event.seq };
            // What is unmapped may be a segment that is being freed, and that is reported next.
            if wakes { self.push_change(Some(call)) } else { self.is_outdated = true }
        }
    }

    /// Memory that was returned before PyTorch reported a segment was a library's, unless it was of
    /// an attempt of PyTorch that failed.
    fn on_early_free(&mut self, key: u64) {
        let Some(open) = self.open_calls.take(key) else { return };
        if self.is_known() && !self.refused.contains(&open.thread) {
            // It is no longer among the driver's bytes.
            self.push_change(Some(open.call));
            if let Some(change) = self.changes.last_mut() {
                change.bytes = change.bytes.saturating_add(open.card_bytes);
            }
        }
    }

    /// Removes the last open calls of the thread that together have the bytes of a segment.
    fn close_calls_of_segment(&mut self, event: &Event) {
        let mut missing_bytes = event.size;
        while missing_bytes > 0
            && let Some(open) = self.open_calls.take_last_of(event.thread)
        {
            missing_bytes = missing_bytes.saturating_sub(open.call.bytes);
        }
    }

    /// The open calls of a thread, or of all, are of libraries.
    fn close_calls(&mut self, thread: Option<ThreadId>) {
        while let Some(open) = self.open_calls.take_first_of(thread) {
            self.push_change(Some(open.call));
        }
    }

    fn push_change(&mut self, call: Option<LibraryCall>) {
        let Some(unrecorded_bytes) = self.unrecorded_bytes else { return };
        let open_bytes = self.open_calls.card_bytes;
        let asleep_bytes = self.sleeping.bytes();
        let in_use = signed(self.driver.card_bytes) - signed(open_bytes);
        let of_pytorch = signed(self.reserved_bytes) - signed(asleep_bytes);
        let bytes = u64::try_from(unrecorded_bytes + in_use - of_pytorch).unwrap_or(0);
        self.changes.push(OutsideMemory { bytes, asleep_bytes, call });
    }
}

fn signed(bytes: u64) -> i64 {
    // No device has 2^62 bytes; a corrupt event may say so.
    (bytes.min(1 << 62)) as i64
}

#[cfg(test)]
mod tests {
    use gpumemtrace_format::event::SAMPLE_SOURCE_RECORDER;

    use super::*;
    use crate::tests::run::{driver_change, walked};

    const MIB: u64 = 1 << 20;

    struct Recording {
        watch: OutsideWatch,
        next_addr: u64,
        thread: u32,
    }

    impl Recording {
        /// 500 MiB are in use beside 20 MiB of PyTorch.
        fn new() -> Self {
            let mut recording = Self { watch: OutsideWatch::new(0), next_addr: 1, thread: 1 };
            recording.pass(EventKind::DEVICE_ALLOC, 20, [0; 2]);
            assert_eq!(recording.block(20), [], "no sample");
            assert!(!recording.watch.is_known());
            recording.pass(EventKind::MEMORY_SAMPLE, 520, [0, SAMPLE_SOURCE_RECORDER]);
            assert_eq!(recording.block(20), [(500, 0, None)]);
            assert_eq!(recording.block(20), []);
            recording
        }

        /// Passes an event of the device. Returns what is outside, what is asleep, and what a call
        /// asked for, in MiB.
        fn pass(&mut self, kind: EventKind, mib: u64, aux: [u64; 2]) -> Vec<(u64, u64, Option<u64>)> {
            self.next_addr += 1;
            self.pass_at(kind, self.next_addr << 32, mib, aux)
        }

        fn pass_at(
            &mut self,
            kind: EventKind,
            addr: u64,
            mib: u64,
            aux: [u64; 2],
        ) -> Vec<(u64, u64, Option<u64>)> {
            let thread = ThreadId(self.thread);
            let event = &Event { device: 0, addr, size: mib * MIB, aux, thread, ..Event::new(kind) };
            let changes = &driver_change(event).into_iter().collect::<Vec<_>>()[..];
            let (time_ns, step, stack, site) = (0, 0, 0, 0);
            let walked =
                WalkedEvent { event, time_ns, step, stack, site, name: None, is_inside: true, changes };
            self.watch.on_event(&walked);
            in_mib(self.watch.changes())
        }

        /// Returns memory that was allocated at an address.
        fn free(&mut self, addr: u64, mib: u64) -> Vec<(u64, u64, Option<u64>)> {
            let made = Event { device: 0, addr, size: mib * MIB, ..Event::new(EventKind::DEVICE_ALLOC) };
            let Some(BlockChange::Allocated(block)) = driver_change(&made) else { return Vec::new() };
            let event = &Event { device: 0, addr, ..Event::new(EventKind::DEVICE_FREE) };
            self.watch
                .on_event(&WalkedEvent { changes: &[BlockChange::Freed(block)], ..walked(event, 0, 0) });
            in_mib(self.watch.changes())
        }

        /// The driver refuses memory.
        fn refuse(&mut self) {
            let thread = ThreadId(self.thread);
            let event =
                &Event { device: 0, result: OUT_OF_MEMORY, thread, ..Event::new(EventKind::PHYS_CREATE) };
            self.watch.on_event(&walked(event, 0, 0));
        }

        fn block(&mut self, reserved_mib: u64) -> Vec<(u64, u64, Option<u64>)> {
            self.pass(EventKind::BLOCK_ALLOC, 1, [0, reserved_mib * MIB])
        }
    }

    #[test]
    fn library_in_a_thread_without_blocks_takes_memory_too() {
        let mut recording = Recording::new();
        recording.thread = 2;
        assert_eq!(recording.pass(EventKind::DEVICE_ALLOC, 30, [0; 2]), []);
        recording.thread = 1;
        assert_eq!(recording.block(20), [(530, 0, Some(30)), (530, 0, None)]);
    }

    fn in_mib(changes: &[OutsideMemory]) -> Vec<(u64, u64, Option<u64>)> {
        let mib = |change: &OutsideMemory| {
            (change.bytes / MIB, change.asleep_bytes / MIB, change.call.map(|call| call.bytes / MIB))
        };
        changes.iter().map(mib).collect()
    }

    #[test]
    fn driver_calls_after_a_sample_change_what_is_outside() {
        let mut recording = Recording::new();
        // A library takes 63 MiB, then PyTorch 40.
        recording.pass(EventKind::DEVICE_ALLOC, 63, [0; 2]);
        assert_eq!(recording.block(20), [(564, 0, Some(63)), (564, 0, None)], "whole pages");
        recording.pass(EventKind::DEVICE_ALLOC, 40, [0; 2]);
        assert_eq!(recording.pass(EventKind::SEGMENT_ALLOC, 40, [0; 2]), []);
        assert_eq!(recording.block(60), [(564, 0, None)]);
        recording.pass(EventKind::MEMORY_SAMPLE, 700, [0, SAMPLE_SOURCE_NVML]);
        assert_eq!(recording.block(60), [], "of this process only");
    }

    #[test]
    fn calls_of_libraries_are_told_apart_before_a_segment_and_at_the_end() {
        let mut recording = Recording::new();
        recording.pass(EventKind::DEVICE_ALLOC, 8, [0; 2]);
        recording.pass(EventKind::DEVICE_ALLOC, 20, [0; 2]);
        assert_eq!(recording.pass(EventKind::SEGMENT_ALLOC, 20, [0; 2]), [(508, 0, Some(8))]);
        recording.block(40);
        recording.pass(EventKind::DEVICE_ALLOC, 64, [0; 2]);
        recording.watch.finish();
        assert_eq!(in_mib(recording.watch.changes()), [(572, 0, Some(64))]);
    }

    #[test]
    fn memory_that_a_library_returns_at_once_is_needed_too() {
        let mut recording = Recording::new();
        recording.pass_at(EventKind::DEVICE_ALLOC, 1 << 40, 64, [0; 2]);
        assert_eq!(recording.free(1 << 40, 64), [(564, 0, Some(64))]);
        assert_eq!(recording.block(20), [(500, 0, None)]);
        // PyTorch returns what it got of a request that fails.
        recording.pass_at(EventKind::DEVICE_ALLOC, 2 << 40, 20, [0; 2]);
        recording.refuse();
        assert_eq!(recording.free(2 << 40, 20), []);
    }

    #[test]
    fn sleeping_segments_give_their_memory_back() {
        let mut recording = Recording::new();
        let addr = 1 << 40;
        recording.pass_at(EventKind::DEVICE_ALLOC, addr, 100, [0; 2]);
        recording.pass_at(EventKind::SEGMENT_ALLOC, addr, 100, [0; 2]);
        assert_eq!(recording.block(120), [(500, 0, None)]);
        assert_eq!(recording.pass_at(EventKind::UNMAP, addr, 100, [0; 2]), []);
        // The test has no driver call that returns the memory.
        assert_eq!(recording.block(120), [(600, 100, None)]);
        assert_eq!(recording.pass_at(EventKind::MAP, addr, 100, [0; 2]), [(500, 0, Some(100))]);
    }
}
