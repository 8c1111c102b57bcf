//! Calls a function between any two instructions of another one, where a signal may arrive.

use std::cell::Cell;
use std::mem::MaybeUninit;

thread_local! {
    static HANDLER: Cell<Option<*mut dyn FnMut()>> = const { Cell::new(None) };
}

extern "C" fn on_step(_signal: i32) {
    if let Some(handler) = HANDLER.get() {
        // SAFETY: the closure of `with_signal_at_each_step`, which waits for this call.
        unsafe { (*handler)() };
    }
}

/// Runs `body` with the processor's trap flag set, and `handler` after each of its instructions.
/// `handler` must not panic.
pub(super) fn with_signal_at_each_step(body: impl FnOnce(), mut handler: impl FnMut()) {
    let borrowed: &mut (dyn FnMut() + '_) = &mut handler;
    // SAFETY: only the lifetime changes; the pointer is removed before `handler` ends.
    let handler =
        unsafe { std::mem::transmute::<&mut (dyn FnMut() + '_), &'static mut dyn FnMut()>(borrowed) };
    HANDLER.set(Some(handler));
    // SAFETY: an all-zero structure is a valid action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_step as *const () as usize;
    // SAFETY: the handler runs on the thread that has set the flag; the structure is ours.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) }, 0);
    // SAFETY: changes a flag that the kernel clears during the handler.
    unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    body();
    // SAFETY: restores the flag.
    unsafe { std::arch::asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    HANDLER.set(None);
}
