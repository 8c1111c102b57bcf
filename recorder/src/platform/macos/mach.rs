//! Declarations of Mach and dyld functions (`mach/mach.h`, `mach/mach_vm.h`, `mach-o/dyld.h`).

use std::ffi::{c_char, c_int, c_void};

/// `mach_port_t`: a right to a task, a thread or another object.
pub(super) type MachPort = u32;
/// `kern_return_t`; 0 means success.
pub(super) type KernReturn = c_int;

unsafe extern "C" {
    static mach_task_self_: MachPort;

    pub(super) fn mach_vm_read_overwrite(
        task: MachPort,
        address: u64,
        bytes: u64,
        data: u64,
        read_bytes: *mut u64,
    ) -> KernReturn;
    pub(super) fn mach_vm_remap(
        target: MachPort,
        address: *mut u64,
        bytes: u64,
        mask: u64,
        flags: c_int,
        source: MachPort,
        source_address: u64,
        copy: c_int,
        current: *mut c_int,
        most: *mut c_int,
        inheritance: u32,
    ) -> KernReturn;
    pub(super) fn mach_vm_deallocate(task: MachPort, address: u64, bytes: u64) -> KernReturn;
    pub(super) fn mach_port_deallocate(task: MachPort, name: MachPort) -> KernReturn;
    pub(super) fn task_threads(task: MachPort, threads: *mut *mut MachPort, count: *mut u32) -> KernReturn;
    pub(super) fn thread_get_register_pointer_values(
        thread: MachPort,
        stack_pointer: *mut usize,
        count: *mut usize,
        values: *mut usize,
    ) -> KernReturn;
    pub(super) fn minherit(address: *mut c_void, bytes: usize, inheritance: c_int) -> c_int;

    pub(super) fn __ulock_wait(operation: u32, address: *mut c_void, value: u64, timeout_us: u32) -> c_int;
    pub(super) fn __ulock_wake(operation: u32, address: *mut c_void, value: u64) -> c_int;

    pub(super) fn _dyld_image_count() -> u32;
    pub(super) fn _dyld_get_image_header(index: u32) -> *const c_void;
    pub(super) fn _dyld_get_image_vmaddr_slide(index: u32) -> isize;
    pub(super) fn _dyld_get_image_name(index: u32) -> *const c_char;
    pub(super) fn _dyld_register_func_for_add_image(function: extern "C" fn(*const c_void, isize));
    pub(super) fn _dyld_register_func_for_remove_image(function: extern "C" fn(*const c_void, isize));
}

/// The port of this process.
#[inline]
pub(super) fn this_task() -> MachPort {
    // SAFETY: set by the C library before any code of ours runs, and never changed.
    unsafe { mach_task_self_ }
}
