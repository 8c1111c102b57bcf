//! Captures the native stack of the calling thread.
//!
//! The complete unwinder (the `backtrace` crate, on top of the C++ runtime's) takes a hundred
//! nanoseconds a frame, and a PyTorch stack has forty frames. So the unwind tables are read once
//! for each address ([`cfi`], found by `loaded_module`) and kept as rules ([`rule`],
//! [`rule_cache`]). Frames that are unchanged since the last capture are only compared ([`memo`]).
//! All reads stay within the thread's own stack ([`bounds`]), and return addresses are never
//! written to. `tests/native_oracle.rs` compares the result frame by frame with the complete
//! unwinder.
//!
//! Why not framehop: it walks every frame again, its caller must keep a module list current across
//! `dlopen`, and its documentation calls in-process use unproven
//! (<https://github.com/mstange/framehop>). An unchanged stack of 75 frames, Python and native,
//! costs 128 ns here (`BENCHMARKS.md`).
//!
//! On Apple's systems the ABI requires every function that calls another to keep a frame pointer.
//! There one rule holds for all addresses, and no tables are read.
//!
//! Frames that no rule can express are left to the complete unwinder ([`fallback`]). It gives the
//! same return addresses, and the trace does not record which unwinder found a frame. It is never
//! used for an address without unwind tables: it would read the code there, which may not be mapped
//! (some coroutine libraries leave such stacks), and that would end the program.
//!
//! A rule is wrong if its module was unloaded and another one lies at the same address. Checking
//! that at every frame would cost as much as walking. So the `dlclose` hook, and the writer when
//! the loader has counted an unload, increment a counter
//! ([`note_module_unload`](crate::note_module_unload)), and all rules are read again. An outdated
//! rule can only truncate or misname a stack: it reads nothing but the stack.

pub(crate) mod bounds;
#[cfg(any(not(target_vendor = "apple"), test))]
pub(crate) mod cfi;
#[cfg(test)]
mod fake_words;
mod fallback;
#[cfg(not(target_vendor = "apple"))]
pub(crate) mod loaded_module;
pub(crate) mod memo;
pub(crate) mod rule;
pub(crate) mod rule_cache;

use gpumemtrace_format::NodeId;

#[cfg(not(target_vendor = "apple"))]
pub use loaded_module::prepare;

use crate::platform::cancellation::uninterrupted;
use crate::platform::process_memory::{Direct, Guarded};
use crate::platform::side_stack::SideStack;
use crate::platform::unload_counter::{unload_generation, unloads};
use crate::stacks::cache::{FrameKey, StackCache};
use bounds::StackBounds;
use fallback::FallbackMemo;
use memo::NativeStackMemo;
use rule::{UnwindFrame, UnwindRule, UnwindStop};
use rule_cache::RuleCache;

/// The native stack of one thread. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub struct NativeStack {
    /// Empty until the thread captures its first stack.
    bounds: StackBounds,
    has_bounds: bool,
    /// True if the caller's frame pointer is needed to find the first frames. Usually it is not,
    /// and then its arbitrary value must not make two stacks differ.
    needs_fp: bool,
    /// True if the complete unwinder found the last stack.
    used_fallback: bool,
    memo: NativeStackMemo,
    rules: RuleCache,
    fallback: FallbackMemo,
    fallback_cache: StackCache,
    /// Where unwind tables are read if the program's stack is small; see [`read_rule_on`].
    table_stack: TableStack,
}

/// Reading unwind tables takes about 12 KiB of stack.
type TableStack = SideStack<{ 32 << 10 }>;
/// Unwind tables are read on the program's stack if it has this many bytes left.
const ENOUGH_STACK_BYTES: usize = 24 << 10;

/// The result of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapturedStack {
    /// The node of the stack.
    pub node: NodeId,
    /// True if outer frames were omitted.
    pub is_truncated: bool,
}

impl NativeStack {
    /// Forgets the thread that used this block before. Its nodes stay known.
    pub fn forget(&mut self) {
        self.memo.forget();
        self.fallback.forget();
        (self.has_bounds, self.needs_fp, self.used_fallback) = (false, false, false);
    }

    /// Finds the bounds of the calling thread's stack. The C library reads those of the first
    /// thread from a file, so this runs on a stack of ours. All signals must be blocked. Without
    /// this call, the first capture does it.
    pub fn prepare(&mut self) {
        // SAFETY: the stack belongs to this thread, and no other code uses it.
        self.bounds = unsafe { self.table_stack.run(StackBounds::of_this_thread) };
        self.has_bounds = true;
    }

    /// Limits stacks to their innermost `frames` frames.
    pub fn limit_depth(&mut self, frames: usize) {
        self.memo.limit_depth(frames);
    }

    /// True if the complete unwinder found the last stack.
    pub fn used_fallback(&self) -> bool {
        self.used_fallback
    }

    /// Captures the stack of the calling thread, from the caller of this function outwards.
    ///
    /// `define(parent, frame)` is called for each unknown frame and returns its new id. If it
    /// returns `None`, the definition could not be recorded, and the node of the outer part of the
    /// stack is returned.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "the frame that captures must outlive the walk")]
    pub fn capture(&mut self, define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>) -> CapturedStack {
        let mut here = here();
        let fp = here.fp;
        if !self.needs_fp {
            here.fp = 0;
        }
        // SAFETY: only words that a walk of this thread has read within its stack, further out than
        // this frame.
        let memory = unsafe { Direct::new() };
        match self.memo.node_if_unchanged(&memory, &here, unload_generation()) {
            Some((node, is_truncated)) => CapturedStack { node, is_truncated },
            None => self.walk(here, fp, define),
        }
    }

    #[inline(never)]
    fn walk(
        &mut self,
        mut here: UnwindFrame,
        fp: usize,
        define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> CapturedStack {
        if self.used_fallback
            && let Some(node) = self.fallback.node_if_unchanged(here.sp)
        {
            return CapturedStack { node, is_truncated: self.fallback.is_truncated() };
        }
        if !self.has_bounds {
            uninterrupted(|| self.prepare());
        }
        let Some(within) = self.bounds.above(here.sp) else {
            return self.walk_foreign_stack(here, fp, define);
        };
        // SAFETY: as in `capture`.
        let memory = unsafe { Direct::new() };
        let generation = unload_generation();
        let small = (!self.bounds.has_below(here.sp, ENOUGH_STACK_BYTES)).then_some(&self.table_stack);
        let read = |pc, is_interrupted| read_rule_on(small, pc, is_interrupted);
        let mut change = self.memo.walk((&within, &memory), &mut self.rules, &here, generation, read);
        let is_incomplete = |change: &Result<memo::NativeStackChange, UnwindStop>| matches!(change, Ok(change) if change.is_truncated);
        if is_incomplete(&change) && !self.needs_fp {
            self.needs_fp = true;
            here.fp = fp;
            change = self.memo.walk((&within, &memory), &mut self.rules, &here, generation, read);
        }
        let Ok(change) = change else { return self.walk_with_fallback(here.sp, define) };
        self.used_fallback = false;
        let node = self.memo.apply(&change, define);
        CapturedStack { node, is_truncated: change.is_truncated }
    }

    /// Walks an alternate signal stack, a fibre or a coroutine. The end of such a stack is unknown,
    /// and its words may lead to any address. So every word is read through the kernel, which
    /// refuses instead of faulting.
    #[cold]
    #[inline(never)]
    fn walk_foreign_stack(
        &mut self,
        here: UnwindFrame,
        fp: usize,
        define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> CapturedStack {
        self.memo.forget();
        self.rules.sync_generation(unload_generation());
        self.used_fallback = false;
        let (mut frame, mut depth, mut place, mut is_truncated) = (UnwindFrame { fp, ..here }, 0, 0, true);
        while depth < self.memo.max_depth() {
            let read = |pc, is_interrupted| read_rule_on(Some(&self.table_stack), pc, is_interrupted);
            let (rule, at) = self.rules.find_or_read(place, (frame.pc, frame.is_interrupted), read);
            match rule.step(&Guarded, &frame) {
                Ok(step) if step.frame.pc != 0 => (frame, place) = (step.frame, at),
                Ok(_) | Err(UnwindStop::Outermost) => {
                    is_truncated = false;
                    break;
                }
                // A signal frame: its caller lies on another stack.
                Err(UnwindStop::Fallback) => return self.walk_with_fallback(here.sp, define),
                Err(UnwindStop::Invalid) => break,
            }
            self.fallback_cache.frames[depth] =
                FrameKey { code: 0, instr: frame.pc, tag: u64::from(unloads()) };
            depth += 1;
        }
        CapturedStack { node: self.fallback_cache.intern(depth, define), is_truncated }
    }

    #[cold]
    #[inline(never)]
    fn walk_with_fallback(
        &mut self,
        from: usize,
        define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> CapturedStack {
        self.memo.forget();
        let walk = self.fallback.capture(from, &mut self.fallback_cache.frames[..self.memo.max_depth()]);
        let node = self.fallback_cache.intern(walk.depth, define);
        self.fallback.remember(node, walk.is_truncated);
        self.used_fallback = true;
        CapturedStack { node, is_truncated: walk.is_truncated }
    }
}

/// As [`read_rule`], on another stack if the program's is small. That takes two system calls, as
/// every word of a foreign stack does.
#[cold]
#[inline(never)]
fn read_rule_on(small: Option<&TableStack>, pc: usize, is_interrupted: bool) -> Option<UnwindRule> {
    match small {
        None => read_rule(pc, is_interrupted),
        // SAFETY: the stack belongs to this thread. No other hook of it is at work in the recorder,
        // and all signals are blocked.
        Some(stack) => uninterrupted(|| unsafe { stack.run(|| read_rule(pc, is_interrupted)) }),
    }
}

/// Reads the rule for an address from the unwind tables. Returns `None` if there are none.
#[cfg(not(target_vendor = "apple"))]
#[cold]
#[inline(never)]
fn read_rule(pc: usize, is_interrupted: bool) -> Option<UnwindRule> {
    let module = loaded_module::LoadedModule::containing(pc.wrapping_sub(usize::from(!is_interrupted)))?;
    cfi::read_rule_at(
        cfi::DwarfRegisters::HERE,
        module.header_at,
        |at| module.bytes_from(at),
        (pc, is_interrupted),
    )
}

/// Every function keeps a frame pointer: "The frame pointer register (x29) must always address a
/// valid frame record."
/// <https://developer.apple.com/documentation/xcode/writing-arm64-code-for-apple-platforms>
#[cfg(target_vendor = "apple")]
#[allow(clippy::unnecessary_wraps, reason = "on other systems there may be no rule")]
fn read_rule(_: usize, _: bool) -> Option<UnwindRule> {
    Some(UnwindRule::FRAME_POINTER)
}

/// Does nothing: one rule holds for all addresses.
#[cfg(target_vendor = "apple")]
pub fn prepare() {}

/// The registers of the function into which this one is inlined.
#[inline(always)]
#[allow(clippy::inline_always, reason = "a function of its own would have other registers")]
fn here() -> UnwindFrame {
    let (pc, sp, fp): (usize, usize, usize);
    // SAFETY: reads three registers.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "lea {pc}, [rip]",
            "mov {sp}, rsp",
            "mov {fp}, rbp",
            pc = out(reg) pc,
            sp = out(reg) sp,
            fp = out(reg) fp,
            options(nomem, nostack, preserves_flags),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "adr {pc}, .",
            "mov {sp}, sp",
            "mov {fp}, x29",
            pc = out(reg) pc,
            sp = out(reg) sp,
            fp = out(reg) fp,
            options(nomem, nostack, preserves_flags),
        );
    }
    UnwindFrame { pc, sp, fp, is_interrupted: true }
}

#[cfg(all(test, not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;

    /// Defines a function with a frame pointer and without unwind tables, which calls the next
    /// function.
    macro_rules! framed {
        ($name:ident, $next:path) => {
            #[unsafe(naked)]
            unsafe extern "C" fn $name(out: *mut usize) {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    "push rbp", "mov rbp, rsp", "sub rsp, 64", "call {next}", "leave", "ret", next = sym $next
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    "stp x29, x30, [sp, #-64]!", "mov x29, sp", "bl {next}", "ldp x29, x30, [sp], #64", "ret",
                    next = sym $next
                );
            }
        };
    }

    framed!(outer, middle);
    framed!(middle, inner);

    /// Passes its program counter, stack pointer and frame pointer to `walk`.
    #[unsafe(naked)]
    unsafe extern "C" fn inner(out: *mut usize) {
        #[cfg(target_arch = "x86_64")]
        core::arch::naked_asm!(
            "push rbp", "mov rbp, rsp", "lea rsi, [rip]", "mov rdx, rsp", "mov rcx, rbp", "call {next}", "pop rbp", "ret",
            next = sym walk
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-16]!", "mov x29, sp", "adr x1, .", "mov x2, sp", "mov x3, x29", "bl {next}",
            "ldp x29, x30, [sp], #16", "ret", next = sym walk
        );
    }

    unsafe extern "C" fn walk(out: *mut usize, pc: usize, sp: usize, fp: usize) {
        let mut frame = UnwindFrame { pc, sp, fp, is_interrupted: true };
        let within = StackBounds::of_this_thread().above(sp).unwrap();
        for at in 0..4 {
            // SAFETY: the caller's array has four elements.
            unsafe { *out.add(at) = frame.pc };
            match UnwindRule::FRAME_POINTER.step(&within, &frame) {
                Ok(step) => frame = step.frame,
                Err(_) => break,
            }
        }
    }

    #[test]
    fn frame_pointer_rule_leads_from_function_to_function() {
        let mut found = [0; 4];
        // SAFETY: the array has four elements.
        unsafe { outer(found.as_mut_ptr()) };
        let functions =
            [inner as *const (), middle as *const (), outer as *const ()].map(|function| function as usize);
        for (at, function) in found.iter().zip(functions) {
            assert!(
                (function..function + 64).contains(at),
                "{at:#x} is not in the function at {function:#x}"
            );
        }
        let this = frame_pointer_rule_leads_from_function_to_function as *const () as usize;
        assert!((this..this + 4096).contains(&found[3]), "the caller is found too");
    }

    #[test]
    fn here_gives_the_current_registers() {
        let frame = here();
        let this = here_gives_the_current_registers as *const () as usize;
        assert!((this..this + 4096).contains(&frame.pc), "{frame:x?}");
        assert!(StackBounds::of_this_thread().above(frame.sp).is_some());
    }
}
