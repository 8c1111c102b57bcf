//! Computes small tensors, so that programs which look at their data go the way they go on a GPU.
//!
//! Kernels of the simulated GPU do nothing. But a program branches on small values: the length of a
//! batch, a mask, the tokens of an expert, `done.all()`. PyTorch's CPU kernels can compute them in
//! place, because simulated memory is memory of this process. PyTorch finds its kernels in two
//! places, and both can be changed without its headers:
//!
//! * A *stub* (`at::native::DispatchStub`) has a pointer to the kernel of each kind of device, all
//!   with the same arguments. [`stubs`] puts a hook in front of the CUDA kernel. If the tensors are
//!   small, it calls the CPU kernel of the same stub with the same arguments.
//! * Other CUDA functions are called through the global offset table of `libtorch_cuda.so`.
//!   [`functions`] hooks those that steer programs.
//!
//! The CUDA function runs as well, so allocations stay what they were (one that fails without
//! kernels, `mode`, is left out). Nothing above the kernels
//! changes, so autograd, `torch.jit`, `torch.func` and `torch.compile` see the same PyTorch.
//!
//! **What is known.** [`known_bytes`] keeps which bytes have the value that a GPU would compute:
//! those that the program copied or filled in, and what was computed from known bytes alone. Other
//! bytes are *placeholders*, zero unless [`rules`] says otherwise. Floating-point results are
//! computed from known bytes only: 0/0 or the logarithm of a placeholder would be NaN, and end the
//! program. A few kernels with finite results are an exception, where tensors have few elements. A
//! read of placeholders by the program is reported with its line.
//!
//! [`initializers`] saves the host's memory.
//!
//! [`install`] runs when a program first uses the driver. Layouts of PyTorch's objects are checked
//! at each use ([`tensor_iterator`]); what does not fit is not computed.

mod accumulated_index;
mod allocator;
mod call_frame;
mod computed_here;
mod foreach_lists;
mod functions;
mod initializers;
mod iterator_kernels;
pub(crate) mod known_bytes;
mod loaded_library;
mod one_thread;
mod plans;
mod program_zeros;
mod rules;
mod scalar_type;
mod shaped_by_values;
mod stubs;
mod tensor;
mod tensor_iterator;
mod tensor_kernels;
pub(crate) mod unknown_reads;
mod view;

use std::sync::Once;

pub(crate) use shaped_by_values::take_planted;

use crate::entry::config;
use loaded_library::LoadedLibrary;

/// The largest tensor that is computed, in bytes; 0 turns values off.
pub(crate) fn limit_bytes() -> u64 {
    config().values_bytes
}

/// True if small tensors are computed.
pub(crate) fn are_on() -> bool {
    limit_bytes() > 0
}

/// Hooks the CPU's kernels that initialize tensors, at the first call with PyTorch loaded. That is
/// before CUDA is used: a program may make its model first.
pub(crate) fn install_initializers() {
    static DONE: Once = Once::new();
    if let (true, Some(cpu)) = (are_on(), LoadedLibrary::find("libtorch_cpu.so")) {
        DONE.call_once(|| {
            let _ = tensor::find_functions(&cpu);
            tensor_iterator::find_functions(&cpu);
            stubs::hook_initializers(&cpu);
        });
    }
}

/// Hooks PyTorch's functions, at the first call with PyTorch loaded.
pub(crate) fn install() {
    static DONE: Once = Once::new();
    if !are_on() || DONE.is_completed() {
        return;
    }
    let (Some(cpu), Some(cuda)) =
        (LoadedLibrary::find("libtorch_cpu.so"), LoadedLibrary::find("libtorch_cuda.so"))
    else {
        return;
    };
    DONE.call_once(|| {
        if !tensor::find_functions(&cpu) {
            return;
        }
        tensor_iterator::find_functions(&cpu);
        one_thread::find_functions(&cpu);
        stubs::hook(&cpu);
        functions::hook(&cpu, &cuda);
        if let Some(python) = LoadedLibrary::find("libtorch_python.so") {
            program_zeros::hook(&cpu, &python);
        }
        allocator::hook();
    });
}
