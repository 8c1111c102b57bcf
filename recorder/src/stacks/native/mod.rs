//! Native call sites of the calling thread.
//!
//! Constraint: the complete unwinder (the `backtrace` crate, over the C++ runtime's) takes a hundred nanoseconds a frame, and
//! PyTorch has forty. Consequence: the tables are read once an address (`cfi`, from where `objects` says), their answers are
//! kept as rules (`rule`, `cache`), and what has not moved since the last walk is only compared (`trail`). Words are read
//! within the thread's own stack (`stack`). Return addresses are never written to.
//!
//! On Apple's systems every function that calls another keeps a frame pointer, as their ABI demands: there one rule holds for all
//! addresses, and nothing is read to know it.
//!
//! What rules cannot say is left to the complete unwinder (`fallback`). Its frames are the same return addresses, so a reader
//! sees no difference; which were found how is not recorded. It is never asked about an address of no known code: it would read
//! the code itself, and where a coroutine library has left a stack that leads nowhere, that ends the program.
//!
//! A rule is wrong when its module was unloaded and another one lies at the same address. Nobody tells, and asking for every
//! frame would cost as much as walking. So whoever notices says so ([`note_module_unload`]), and all rules are read again: the hook
//! of `dlclose`, and the writer when the loader has counted a module less, for what the loader unloads by itself. A rule that is
//! out of date nevertheless can only end or misname a stack: it reads nothing but the stack.

pub(crate) mod bounds;
pub(crate) mod cfi;
#[cfg(test)]
mod fake;
mod fallback;
#[cfg(not(target_vendor = "apple"))]
pub(crate) mod loaded_module;
pub(crate) mod memo;
pub(crate) mod rule;
pub(crate) mod rule_cache;

use gpumemtrace_format::NodeId;

#[cfg(not(target_vendor = "apple"))]
pub use loaded_module::prepare;

use crate::platform::process_memory::{Direct, Guarded};
use crate::platform::unload_counter::generation;
use crate::stacks::cache::{FrameKey, StackCache};
use bounds::StackBounds;
use fallback::FallbackMemo;
use memo::NativeStackMemo;
use rule::{UnwindFrame, UnwindRule, UnwindStop};
use rule_cache::RuleCache;

/// The native stack of one thread. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub struct NativeStack {
    /// Nowhere until the thread asks for its first stack.
    bounds: StackBounds,
    has_bounds: bool,
    /// Whether frames were found through the frame pointer that our own caller had. Mostly they are not, and then its value,
    /// which may be anything, should not make two stacks differ.
    needs_fp: bool,
    /// Whether the last stack was found by the complete unwinder.
    was_slow: bool,
    trail: NativeStackMemo,
    rules: RuleCache,
    unchanged: FallbackMemo,
    slow: StackCache,
}

/// What a look at the stack gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapturedStack {
    /// The stack.
    pub node: NodeId,
    /// Whether outer frames were left out.
    pub is_truncated: bool,
}

impl NativeStack {
    /// Forgets the thread that had this block before. What its stacks were called stays known.
    pub fn forget(&mut self) {
        self.trail.forget();
        self.unchanged.forget();
        (self.has_bounds, self.needs_fp, self.was_slow) = (false, false, false);
    }

    /// From now on stacks have at most so many frames, their innermost ones.
    pub fn limit(&mut self, frames: usize) {
        self.trail.limit(frames);
    }

    /// Whether the last stack was left to the complete unwinder.
    pub fn was_slow(&self) -> bool {
        self.was_slow
    }

    /// The stack of the calling thread, from the caller of this on.
    ///
    /// `define(parent, frame)` is called for each frame not known yet and returns its new id, or `None` when the definition
    /// could not be recorded: the stack is then cut there (its outer part is returned).
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "the frame that asks must outlive the walk")]
    pub fn find(&mut self, define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>) -> CapturedStack {
        let mut here = here();
        let fp = here.fp;
        if !self.needs_fp {
            here.fp = 0;
        }
        // SAFETY: only words that a walk of this thread has read within its stack, further out than where we are.
        let memory = unsafe { Direct::new() };
        match self.trail.unchanged(&memory, &here, generation()) {
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
        if self.was_slow
            && let Some(node) = self.unchanged.node(here.sp)
        {
            return CapturedStack { node, is_truncated: self.unchanged.is_truncated() };
        }
        if !self.has_bounds {
            self.bounds = StackBounds::of_this_thread();
            self.has_bounds = true;
        }
        let Some(within) = self.bounds.above(here.sp) else { return self.walk_elsewhere(here, fp, define) };
        // SAFETY: as in `find`.
        let memory = unsafe { Direct::new() };
        let generation = generation();
        let mut change = self.trail.walk((&within, &memory), &mut self.rules, &here, generation, read_rule);
        let is_astray = |change: &Result<memo::NativeStackChange, UnwindStop>| matches!(change, Ok(change) if change.is_truncated);
        if is_astray(&change) && !self.needs_fp {
            self.needs_fp = true;
            here.fp = fp;
            change = self.trail.walk((&within, &memory), &mut self.rules, &here, generation, read_rule);
        }
        let Ok(change) = change else { return self.walk_slowly(here.sp, define) };
        self.was_slow = false;
        let node = self.trail.follow(&change, define);
        CapturedStack { node, is_truncated: change.is_truncated }
    }

    /// On an alternate signal stack, a fibre, a coroutine: nobody knows where such a stack ends, and what lies there may lead
    /// anywhere. So every word is read through the kernel, which refuses instead of faulting.
    #[cold]
    #[inline(never)]
    fn walk_elsewhere(
        &mut self,
        here: UnwindFrame,
        fp: usize,
        define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> CapturedStack {
        self.trail.forget();
        self.rules.begin(generation());
        self.was_slow = false;
        let (mut frame, mut depth, mut place, mut is_truncated) = (UnwindFrame { fp, ..here }, 0, 0, true);
        while depth < self.trail.most() {
            let (rule, at) = self.rules.rule(place, (frame.pc, frame.is_interrupted), read_rule);
            match rule.step(&Guarded, &frame) {
                Ok(step) if step.frame.pc != 0 => (frame, place) = (step.frame, at),
                Ok(_) | Err(UnwindStop::Outermost) => {
                    is_truncated = false;
                    break;
                }
                // Until here there was sense in it: a signal's frame, whose caller lies on another stack.
                Err(UnwindStop::Fallback) => return self.walk_slowly(here.sp, define),
                Err(UnwindStop::Astray) => break,
            }
            self.slow.frames[depth] = FrameKey { code: 0, instr: frame.pc, tag: 0 };
            depth += 1;
        }
        CapturedStack { node: self.slow.intern(depth, define), is_truncated }
    }

    #[cold]
    #[inline(never)]
    fn walk_slowly(
        &mut self,
        from: usize,
        define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> CapturedStack {
        self.trail.forget();
        let walk = self.unchanged.capture(from, &mut self.slow.frames[..self.trail.most()]);
        let node = self.slow.intern(walk.depth, define);
        self.unchanged.remember(node, walk.truncated);
        self.was_slow = true;
        CapturedStack { node, is_truncated: walk.truncated }
    }
}

/// What the tables say of an address; `None` if there are none.
#[cfg(not(target_vendor = "apple"))]
#[cold]
#[inline(never)]
fn read_rule(pc: usize, is_interrupted: bool) -> Option<UnwindRule> {
    let object = loaded_module::LoadedModule::of(pc.wrapping_sub(usize::from(!is_interrupted)))?;
    cfi::rule_at(
        cfi::DwarfRegisters::HERE,
        object.header_at,
        |at| object.bytes_from(at),
        (pc, is_interrupted),
    )
}

/// <https://developer.apple.com/documentation/xcode/writing-arm64-code-for-apple-platforms>: "The frame pointer register (x29) must always
/// address a valid frame record."
#[cfg(target_vendor = "apple")]
#[allow(clippy::unnecessary_wraps, reason = "elsewhere there may be none")]
fn read_rule(_: usize, _: bool) -> Option<UnwindRule> {
    Some(UnwindRule::FRAME_POINTER)
}

/// There is nothing to learn.
#[cfg(target_vendor = "apple")]
pub fn prepare() {}

/// The registers of the function that this becomes part of.
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

    /// A function that keeps a frame pointer, and has no unwind tables: it calls the next one.
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

    /// Tells where it runs, its stack pointer and its frame pointer.
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
            // SAFETY: the caller has room for four.
            unsafe { *out.add(at) = frame.pc };
            match UnwindRule::FRAME_POINTER.step(&within, &frame) {
                Ok(step) => frame = step.frame,
                Err(_) => break,
            }
        }
    }

    #[test]
    fn frame_pointers_lead_from_function_to_function() {
        let mut found = [0; 4];
        // SAFETY: there is room for four.
        unsafe { outer(found.as_mut_ptr()) };
        let functions =
            [inner as *const (), middle as *const (), outer as *const ()].map(|function| function as usize);
        for (at, function) in found.iter().zip(functions) {
            assert!(
                (function..function + 64).contains(at),
                "{at:#x} is not in the function at {function:#x}"
            );
        }
        let this = frame_pointers_lead_from_function_to_function as *const () as usize;
        assert!((this..this + 4096).contains(&found[3]), "and to who called them");
    }

    #[test]
    fn we_know_where_we_are() {
        let frame = here();
        let this = we_know_where_we_are as *const () as usize;
        assert!((this..this + 4096).contains(&frame.pc), "{frame:x?}");
        assert!(StackBounds::of_this_thread().above(frame.sp).is_some());
    }
}
