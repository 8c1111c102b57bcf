//! A memory barrier on all threads of the process, paid for by the one that asks.
//!
//! Constraint: there is no `membarrier` here, and on Apple's processors changing a page's protection interrupts nobody. Consequence: each
//! thread is asked for its registers, for which the kernel must stop it: that is a barrier (.NET's runtime does the same:
//! `FlushProcessWriteBuffers`). Where one cannot be asked, we wait until a store has long left its processor.

use super::mach;

/// More than any thread has; a shorter answer is an answer, too.
const REGISTERS: usize = 128;
/// A store leaves the processor's buffer in far less.
const LONG_ENOUGH_US: u32 = 20_000;
const SUCCESS: mach::KernReturn = 0;
/// `KERN_TERMINATED`: there is no such thread any more, and what it stored is there.
const GONE: mach::KernReturn = 37;
/// `KERN_INSUFFICIENT_BUFFER_SIZE`: it was asked all the same.
const TOO_MANY: mach::KernReturn = 52;

/// Nothing to prepare.
pub(crate) fn prepare_barrier() {}

/// Every store made by any thread before it was interrupted is visible when this returns.
pub(crate) fn all_threads() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    if !interrupt_all() {
        // SAFETY: a plain sleep.
        unsafe { libc::usleep(LONG_ENOUGH_US) };
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

fn interrupt_all() -> bool {
    let (mut threads, mut count) = (std::ptr::null_mut(), 0);
    // SAFETY: fills in a list that is given back below.
    if unsafe { mach::task_threads(mach::this_task(), &raw mut threads, &raw mut count) } != SUCCESS {
        return false;
    }
    let mut were_all_asked = true;
    for index in 0..count as usize {
        // SAFETY: inside the list, whose rights are ours to give back, each once.
        unsafe {
            let thread = *threads.add(index);
            were_all_asked &= interrupt(thread);
            mach::mach_port_deallocate(mach::this_task(), thread);
        }
    }
    let bytes = count as usize * size_of::<mach::MachPort>();
    // SAFETY: the list that the kernel made for us.
    unsafe { mach::mach_vm_deallocate(mach::this_task(), threads as u64, bytes as u64) };
    were_all_asked
}

fn interrupt(thread: mach::MachPort) -> bool {
    let (mut stack_pointer, mut values, mut registers) = (0, REGISTERS, [0; REGISTERS]);
    // SAFETY: there is room for as many registers as is said.
    let answer = unsafe {
        mach::thread_get_register_pointer_values(
            thread,
            &raw mut stack_pointer,
            &raw mut values,
            registers.as_mut_ptr(),
        )
    };
    matches!(answer, SUCCESS | GONE | TOO_MANY)
}
