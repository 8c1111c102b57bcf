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

use super::{OomRecord, ReplayPass};
use crate::callsite::module_owner::{UNKNOWN, passes_through};
use crate::device::{GapRequest, TimedGap};
use crate::state::attribution::TORCH_ALLOCATOR;
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
pub(crate) struct RefusedAllocator {
    /// Sequence number of the call of the error's record.
    error: u64,
    device: u8,
    thread: ThreadId,
    /// The program is in the same call of Python while this stack is the same.
    python_stack: NodeId,
}

impl ReplayPass {
    /// Withdraws the last error if the allocator, still in the same call, gets memory after all.
    #[cold]
    pub(super) fn follow_refused_allocator(&mut self, event: &Event, refused: RefusedAllocator) {
        if event.thread != refused.thread {
            return;
        }
        let is_same_call = event.python_stack == refused.python_stack;
        if is_same_call && (event.result != 0 || event.kind.is_ordered_before_call()) {
            return;
        }
        self.refused_allocator = None;
        let is_of_error = |last: &OomRecord| last.event.seq == refused.error;
        if is_same_call && event.device == refused.device && self.ooms.last().is_some_and(is_of_error) {
            self.ooms.pop();
            self.uncount_ooms(refused.device, 1);
        }
    }

    /// Records an error of an allocator of another library. If the driver refuses it several calls
    /// for one block, the last size is the closest to that of the block.
    fn on_refused_allocator(&mut self, event: &Event, stack: StackId) {
        if let Some(refused) = self.refused_allocator
            && (refused.device, refused.thread) == (event.device, event.thread)
            && let Some(last) = self.ooms.last_mut().filter(|last| last.event.seq == refused.error)
        {
            last.event.size = event.size;
            return;
        }
        self.on_oom_of_driver(event, stack);
        let recorded = self.ooms.last_mut().filter(|last| last.event.seq == event.seq);
        self.refused_allocator = recorded.map(|record| {
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

    /// True if PyTorch called the library for a block. `owner` is the library.
    fn allocates_for_torch(&self, owner: &str, native: NodeId) -> bool {
        let is_vendor = || VENDOR_LIBRARIES.iter().any(|prefix| owner.starts_with(prefix));
        self.tracker == Some(TrackerState::OtherAllocator)
            && owner != UNKNOWN
            && !is_vendor()
            && passes_through(native, self.symbols.definitions(), TORCH_LIBRARIES)
    }

    /// Records a driver call that failed for lack of memory.
    #[cold]
    pub(super) fn on_refused_call(&mut self, event: &Event, stack: StackId) {
        if event.device == NO_DEVICE {
            return;
        }
        let native = self.symbols.stack_info(stack).native;
        let owner = self.owners.owner_of_stack(native, self.symbols.definitions());
        let owner = self.owners.name(owner);
        if owner.starts_with(TORCH_ALLOCATOR) {
            self.refused_torch_calls += 1;
            let device = &self.devices.all[usize::from(event.device)];
            let has_blocks = device.as_ref().is_some_and(|device| device.has_torch());
            let is_uncached =
                matches!(self.tracker, Some(TrackerState::OtherAllocator | TrackerState::CacheOff));
            if is_uncached && !has_blocks {
                self.on_oom_of_driver(event, stack);
            }
            return;
        }
        let device = &self.devices.all[usize::from(event.device)];
        let has_blocks = device.as_ref().is_some_and(|device| device.has_torch());
        if !has_blocks && self.allocates_for_torch(owner, native) {
            self.on_refused_allocator(event, stack);
            return;
        }
        let (requested_bytes, time_ns, step) = (event.size, self.time_ns, self.step);
        self.last_refused_call = Some(RefusedCall { stack, requested_bytes, time_ns, step });
        if owner == UNKNOWN || self.failed_call_gaps.len() >= MAX_FAILED_CALLS {
            return;
        }
        let owner = owner.to_owned();
        let Some(device) = &mut self.devices.all[usize::from(event.device)] else { return };
        let reserved = device.reserved;
        if reserved <= device.torch.total().bytes {
            return;
        }
        let moment = GapRequest {
            time_ns: self.time_ns,
            reserved,
            pool: device.most_requested_pool(),
            has_failed: false,
        };
        let site_of = |stack| self.symbols.stack_info(stack).site;
        let gap = device.explain_gap(moment, self.driver.ranges(), event.device, site_of);
        self.failed_call_gaps.push(FailedCallRecord {
            device: event.device,
            owner,
            stack,
            requested_bytes: event.size,
            gap: TimedGap { time_ns: self.time_ns, step: self.step, reserved, gap },
        });
    }
}
