//! Records of driver calls of other libraries that failed while PyTorch had unused memory.
//!
//! If the driver has no memory left, PyTorch frees its cache and tries again. Other libraries do
//! not, so their call fails although PyTorch holds memory that nothing uses. The first
//! [`MAX_FAILED_CALLS`] are recorded with the gap at that moment, which visits every live block of
//! the device. Calls of an unknown owner may be PyTorch's own and are not recorded.
//!
//! PyTorch may use another library's allocator, such as RMM. A call that the driver refuses it is
//! an out-of-memory error of the program ([`super::oom_events`]), unless that allocator asks again
//! and gets memory: a pool asks for less, or frees what it keeps.

use gpumemtrace_format::{Event, NO_DEVICE, NodeId, ThreadId, TrackerState};

use super::records::{PresentState, Records};
use crate::callsite::module_owner::{UNKNOWN, passes_through};
use crate::device::{GapRequest, TimedGap};
use crate::event_analysis::EventTime;
use crate::ingest::definitions::Definitions;
use crate::state::attribution::TORCH_ALLOCATOR;
use crate::state::driver::OUT_OF_MEMORY;
use crate::util::ids::StackId;

/// Libraries of NVIDIA that PyTorch calls, and that ask the driver for memory of their own.
const VENDOR_LIBRARIES: [&str; 3] = ["libcu", "libnv", "libnccl"];
/// Those of PyTorch, which call its allocator.
const TORCH_LIBRARIES: &str = "libtorch";

/// Limit of recorded calls.
const MAX_FAILED_CALLS: usize = 8;

/// A failed driver call, and the gap of its device.
#[derive(Debug)]
pub(crate) struct FailedCallRecord {
    pub device: u8,
    /// The library that called.
    pub owner: String,
    /// The stack of the call.
    pub stack: StackId,
    pub requested_bytes: u64,
    pub gap: TimedGap,
}

/// A driver call of another library than PyTorch's allocator that failed for lack of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusedCall {
    pub stack: StackId,
    pub requested_bytes: u64,
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
}

/// A call that the driver refused to an allocator of another library.
#[derive(Clone, Copy, Debug)]
struct RefusedAllocator {
    /// Sequence number of the call of the error's record.
    error: u64,
    device: u8,
    thread: ThreadId,
    /// The program is in the same call of Python while this stack is the same.
    python_stack: NodeId,
}

/// The driver calls that failed for lack of memory.
#[derive(Default)]
pub(super) struct FailedCalls {
    /// The first ones of other libraries, with their gaps.
    pub(super) gaps: Vec<FailedCallRecord>,
    /// The last one of another library.
    pub(super) last: Option<RefusedCall>,
    /// The allocator of another library that may ask again for the block it was refused.
    refused_allocator: Option<RefusedAllocator>,
    /// Number of those that PyTorch's allocator had made.
    pub(super) of_torch: u64,
}

impl FailedCalls {
    /// Begins the analysed part of the run. The calls of PyTorch's allocator stay counted.
    pub(super) fn restart(&mut self) {
        *self = Self { of_torch: self.of_torch, ..Self::default() };
    }
}

impl Records {
    /// Records what a driver call says about refused memory.
    pub(super) fn on_driver_call(&mut self, event: &Event, stack: StackId, present: &mut PresentState<'_>) {
        if let Some(refused) = self.failed_calls.refused_allocator {
            self.follow_refused_allocator(event, refused);
        }
        if event.result == OUT_OF_MEMORY && !event.in_flight {
            self.on_refused_call(event, stack, present);
        }
    }

    /// Withdraws the last error if the allocator, still in the same call, gets memory after all.
    #[cold]
    fn follow_refused_allocator(&mut self, event: &Event, refused: RefusedAllocator) {
        if event.thread != refused.thread {
            return;
        }
        let is_same_call = event.python_stack == refused.python_stack;
        if is_same_call && (event.result != 0 || event.kind.is_ordered_before_call()) {
            return;
        }
        self.failed_calls.refused_allocator = None;
        if is_same_call && event.device == refused.device {
            self.ooms.withdraw_last(refused.error, refused.device);
        }
    }

    /// Records an error of an allocator of another library. If the driver refuses it several calls
    /// for one block, the last size is the closest to that of the block.
    fn on_refused_allocator(&mut self, event: &Event, stack: StackId, present: &mut PresentState<'_>) {
        if let Some(refused) = self.failed_calls.refused_allocator
            && (refused.device, refused.thread) == (event.device, event.thread)
            && let Some(last) = self.ooms.last_mut(refused.error)
        {
            last.event.size = event.size;
            return;
        }
        self.ooms.on_oom_of_driver(event, stack, present);
        self.failed_calls.refused_allocator = self.ooms.last_mut(event.seq).map(|record| {
            // If it keeps a pool, a free returns nothing to the driver.
            record.units = None;
            RefusedAllocator {
                error: event.seq,
                device: event.device,
                thread: event.thread,
                python_stack: event.python_stack,
            }
        });
    }

    /// Records a driver call that failed for lack of memory.
    #[cold]
    fn on_refused_call(&mut self, event: &Event, stack: StackId, present: &mut PresentState<'_>) {
        if event.device == NO_DEVICE {
            return;
        }
        let definitions = present.symbols.definitions();
        let native = present.symbols.stack_info(stack).native;
        let owners = &mut present.accounts.owners;
        let owner = owners.owner_of_stack(native, definitions);
        let owner = owners.name(owner).to_owned();
        let tracker = present.accounts.tracker;
        let device = &present.accounts.devices.all[usize::from(event.device)];
        let has_blocks = device.as_ref().is_some_and(|device| device.has_torch());
        if owner.starts_with(TORCH_ALLOCATOR) {
            self.failed_calls.of_torch += 1;
            let is_uncached = matches!(tracker, Some(TrackerState::OtherAllocator | TrackerState::CacheOff));
            if is_uncached && !has_blocks {
                self.ooms.on_oom_of_driver(event, stack, present);
            }
            return;
        }
        if !has_blocks
            && tracker == Some(TrackerState::OtherAllocator)
            && allocates_for_torch(&owner, native, definitions)
        {
            self.on_refused_allocator(event, stack, present);
            return;
        }
        let EventTime { time_ns, step } = present.now;
        self.failed_calls.last = Some(RefusedCall { stack, requested_bytes: event.size, time_ns, step });
        if owner != UNKNOWN && self.failed_calls.gaps.len() < MAX_FAILED_CALLS {
            self.failed_calls.gaps.extend(present.explain_failed_call(event, stack, owner));
        }
    }
}

/// True if the library `owner` allocates for PyTorch in a call with this native stack.
fn allocates_for_torch(owner: &str, native: NodeId, definitions: &Definitions) -> bool {
    let is_vendor = || VENDOR_LIBRARIES.iter().any(|prefix| owner.starts_with(prefix));
    owner != UNKNOWN && !is_vendor() && passes_through(native, definitions, TORCH_LIBRARIES)
}

impl PresentState<'_> {
    /// The record of a failed call of `owner`; `None` if PyTorch has no unused memory.
    fn explain_failed_call(
        &mut self,
        event: &Event,
        stack: StackId,
        owner: String,
    ) -> Option<FailedCallRecord> {
        let device = self.accounts.devices.all[usize::from(event.device)].as_mut()?;
        let reserved = device.reserved;
        if reserved <= device.torch.total().bytes {
            return None;
        }
        let EventTime { time_ns, step } = self.now;
        let pool = device.most_requested_pool();
        let request = GapRequest { time_ns, reserved, pool, has_failed: false };
        let site_of = |stack| self.symbols.stack_info(stack).site;
        let gap = device.explain_gap(request, self.accounts.driver.ranges(), event.device, site_of);
        Some(FailedCallRecord {
            device: event.device,
            owner,
            stack,
            requested_bytes: event.size,
            gap: TimedGap { time_ns, step, reserved, gap },
        })
    }
}
