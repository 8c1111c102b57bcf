//! A memory barrier on all threads of the process, which only its caller pays for.
//!
//! macOS has no `membarrier`, and on Apple's processors changing a page's protection interrupts no
//! thread. So each thread is asked for its registers, for which the kernel must stop it; that is a
//! barrier (.NET's `FlushProcessWriteBuffers` does the same). If a thread cannot be asked, we wait
//! until any store has left its processor.

use super::mach;

/// More registers than any thread has.
const REGISTERS: usize = 128;
/// Far longer than a store stays in the processor's store buffer.
const STORE_BUFFER_US: u32 = 20_000;
const SUCCESS: mach::KernReturn = 0;
/// `KERN_TERMINATED`: the thread has ended, so its stores are visible.
const GONE: mach::KernReturn = 37;
/// `KERN_INSUFFICIENT_BUFFER_SIZE`: the thread was stopped all the same.
const TOO_MANY: mach::KernReturn = 52;

/// Does nothing; Linux needs a registration.
pub(crate) fn prepare_barrier() {}

/// A full memory barrier on all threads of the process.
pub(crate) fn barrier_on_all_threads() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    if !interrupt_all() {
        // SAFETY: a plain sleep.
        unsafe { libc::usleep(STORE_BUFFER_US) };
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

fn interrupt_all() -> bool {
    let (mut threads, mut count) = (std::ptr::null_mut(), 0);
    // SAFETY: fills in a list that is deallocated below.
    if unsafe { mach::task_threads(mach::this_task(), &raw mut threads, &raw mut count) } != SUCCESS {
        return false;
    }
    let mut were_all_stopped = true;
    for index in 0..count as usize {
        // SAFETY: inside the list; each of its rights is released exactly once.
        unsafe {
            let thread = *threads.add(index);
            were_all_stopped &= interrupt(thread);
            mach::mach_port_deallocate(mach::this_task(), thread);
        }
    }
    let bytes = count as usize * size_of::<mach::MachPort>();
    // SAFETY: the list that the kernel made for us.
    unsafe { mach::mach_vm_deallocate(mach::this_task(), threads as u64, bytes as u64) };
    were_all_stopped
}

fn interrupt(thread: mach::MachPort) -> bool {
    let (mut stack_pointer, mut values, mut registers) = (0, REGISTERS, [0; REGISTERS]);
    // SAFETY: the buffer holds as many registers as `values` says.
    let result = unsafe {
        mach::thread_get_register_pointer_values(
            thread,
            &raw mut stack_pointer,
            &raw mut values,
            registers.as_mut_ptr(),
        )
    };
    matches!(result, SUCCESS | GONE | TOO_MANY)
}
