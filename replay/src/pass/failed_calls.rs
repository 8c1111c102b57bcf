//! Records of driver calls of other libraries that failed while PyTorch had unused memory.
//!
//! If the driver has no memory left, PyTorch frees its cache and tries again. Other libraries do
//! not, so their call fails although PyTorch holds memory that nothing uses. The first
//! [`MAX_FAILED_CALLS`] are recorded with the gap at that moment, which visits every live block of
//! the device. Calls of an unknown owner may be PyTorch's own and are not recorded.

use gpumemtrace_format::{Event, NO_DEVICE, TrackerState};

use super::ReplayPass;
use crate::callsite::module_owner::UNKNOWN;
use crate::device::{GapRequest, TimedGap};
use crate::state::attribution::TORCH_ALLOCATOR;
use crate::util::ids::StackId;

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

impl ReplayPass {
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
        let (requested_bytes, time_ns, step) = (event.size, self.time_ns, self.step);
        self.last_refused_call = Some(RefusedCall { stack, requested_bytes, time_ns, step });
        if owner == UNKNOWN || self.failed_call_gaps.len() >= MAX_FAILED_CALLS {
            return;
        }
        let owner = owner.to_owned();
        let Some(device) = &self.devices.all[usize::from(event.device)] else { return };
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
