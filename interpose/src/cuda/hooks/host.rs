//! Page-locked host memory, allocated or registered.

use std::ffi::c_uint;

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::driver_hooks;
use crate::cuda::hooked_call::read_out;
use crate::cuda::queries::current_context;

driver_hooks! { family 1;
    cuMemAllocHost_v2 since 3_020 = "cuMemAllocHost"
    (pointer: *mut u64, size: usize) => HOST_ALLOC {
        before |draft| { draft.size = size as u64; draft.aux[1] = current_context() }
        after |event| { event.addr = read_out(pointer) }
    }

    cuMemHostAlloc since 2_020 = "cuMemHostAlloc"
    (pointer: *mut u64, size: usize, flags: c_uint) => HOST_ALLOC {
        before |draft| { draft.size = size as u64; draft.aux = [u64::from(flags), current_context()] }
        after |event| { event.addr = read_out(pointer) }
    }

    cuMemFreeHost since 2_000 = "cuMemFreeHost"
    (pointer: u64) => HOST_FREE {
        before |draft| { draft.addr = pointer }
    }

    cuMemHostRegister since 4_000, cuMemHostRegister_v2 since 6_050 = "cuMemHostRegister"
    (pointer: u64, size: usize, flags: c_uint) => HOST_REGISTER {
        before |draft| {
            draft.addr = pointer;
            draft.size = size as u64;
            draft.aux = [u64::from(flags), current_context()];
        }
    }

    cuMemHostUnregister since 4_000 = "cuMemHostUnregister"
    (pointer: u64) => HOST_UNREGISTER {
        before |draft| { draft.addr = pointer }
    }
}
