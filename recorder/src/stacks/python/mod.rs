//! Captures the Python stack of the calling thread without the GIL.
//!
//! Hooks run under PyTorch's allocator lock, with or without the GIL. Taking the GIL there can
//! deadlock, and any other call into Python may allocate. So the only Python function that a hook
//! calls is `PyGILState_GetThisThreadState` (one thread-local read; null in a thread that Python
//! does not know). Everything else is read from memory ([`walk`], with the offsets of [`layout`]).
//! Only the part of the stack that has changed is read again ([`memo`]).

pub(crate) mod code;
#[cfg(test)]
mod fake_interpreter;
mod fingerprint;
pub(crate) mod layout;
pub(crate) mod memo;
mod selftest;
pub(crate) mod text;
pub(crate) mod walk;

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::platform;
use crate::platform::process_memory::{Direct, Guarded, Memory};
use code::{CopiedCode, SCRATCH_BYTES, TypeAddresses};
use layout::PythonLayout;
use memo::{PythonStackChange, PythonStackMemo};
use selftest::{SelfTestOutcome, selftest};

use crate::stacks::cache::FrameKey;
use gpumemtrace_format::FrameLink;

/// The interpreter in this process.
#[derive(Debug)]
pub(crate) struct Interpreter {
    layout: PythonLayout,
    types: TypeAddresses,
    thread_state: unsafe extern "C" fn() -> usize,
    /// The thread state that is finalizing the interpreter, or null.
    finalizing: *const AtomicUsize,
    state: AtomicU8,
}

// SAFETY: the one raw pointer leads to an atomic of the interpreter, which is never unloaded.
unsafe impl Send for Interpreter {}
// SAFETY: as above.
unsafe impl Sync for Interpreter {}

const UNTESTED: u8 = 0;
const TRUSTED: u8 = 1;
const REFUSED: u8 = 2;

impl Interpreter {
    /// Looks for an interpreter among the loaded modules. Returns `Ok(None)` if there is none, and
    /// an error that says why its frames cannot be read.
    pub(crate) fn find() -> Result<Option<Self>, String> {
        let symbol = |name| platform::find_symbol(name).unwrap_or(0);
        let thread_state = symbol(c"PyGILState_GetThisThreadState");
        if thread_state == 0 {
            return Ok(None);
        }
        let version = match symbol(c"Py_Version") {
            0 => version_from_text(symbol(c"Py_GetVersion"))
                .ok_or("this Python does not export its version")?,
            // SAFETY: `Py_Version` is an unsigned long constant of the interpreter.
            at => (unsafe { *(at as *const libc::c_ulong) } >> 16) as u16,
        };
        let mut description = [0u8; layout::DEBUG_OFFSETS_BYTES];
        let runtime = symbol(c"_PyRuntime");
        if runtime != 0 {
            // If this is not readable, `of_version` refuses versions that need it.
            let _ = Guarded.read(runtime, &mut description);
        }
        let layout = layout::of_version(version, &description)
            .map_err(|why| format!("Python {}.{}: {why}", version >> 8, version & 0xff))?;
        let types = TypeAddresses {
            code: symbol(c"PyCode_Type"),
            string: symbol(c"PyUnicode_Type"),
            bytes: symbol(c"PyBytes_Type"),
            frame: symbol(c"PyFrame_Type"),
        };
        if [types.code, types.string, types.bytes, types.frame].contains(&0) {
            return Err("the interpreter does not export its types".to_owned());
        }
        // SAFETY: the symbol is this function in every CPython; it takes nothing and returns a
        // pointer.
        let thread_state =
            unsafe { std::mem::transmute::<usize, unsafe extern "C" fn() -> usize>(thread_state) };
        if runtime == 0 {
            return Err("the interpreter does not export _PyRuntime".to_owned());
        }
        let finalizing = (runtime + layout.runtime_finalizing) as *const AtomicUsize;
        Ok(Some(Self { layout, types, thread_state, finalizing, state: AtomicU8::new(UNTESTED) }))
    }

    /// The version as `major << 8 | minor`.
    pub(crate) fn version(&self) -> u16 {
        self.layout.version
    }

    /// Finds out how the stack of the calling thread differs from its last one.
    #[inline]
    pub(crate) fn find_change(&self, memo: &mut PythonStackMemo) -> PythonStackChange {
        // SAFETY: a thread-local read inside the interpreter, allowed at any time on any thread.
        let tstate = unsafe { (self.thread_state)() };
        if tstate == 0 {
            return PythonStackChange::EMPTY;
        }
        match self.readable_frame(tstate) {
            Some(first) => self.find_change_from(first, memo),
            None => PythonStackChange::EMPTY,
        }
    }

    /// The address of the innermost frame, 0 if there is none. `None` if frames cannot be read.
    #[inline]
    fn readable_frame(&self, tstate: usize) -> Option<usize> {
        if self.is_finalizing_elsewhere(|| tstate)
            || self.state.load(Ordering::Relaxed) != TRUSTED && !self.becomes_trusted(tstate)
        {
            return None;
        }
        // SAFETY: the layout passed the self-test, and the state is that of the calling thread.
        let memory = unsafe { Direct::new() };
        self.innermost_frame(&memory, tstate)
    }

    /// True if the self-test passes, if it has not run yet.
    #[cold]
    fn becomes_trusted(&self, tstate: usize) -> bool {
        if self.state.load(Ordering::Relaxed) == REFUSED {
            return false;
        }
        match selftest(&Guarded, &self.layout, &self.types, tstate) {
            SelfTestOutcome::Trusted => self.state.store(TRUSTED, Ordering::Relaxed),
            SelfTestOutcome::NoFrames => return false,
            SelfTestOutcome::Refused => {
                self.state.store(REFUSED, Ordering::Relaxed);
                crate::diagnostics::print_diagnostic(&[
                    "the frames of this Python do not have the expected layout, so call sites are not recorded; ",
                    "allocations are. Please report the exact Python version.",
                ]);
                return false;
            }
        }
        true
    }

    /// The address of the innermost frame; 0 if there is none. Returns `None` if another thread
    /// began to finalize before the thread state was read: it may have been free memory already.
    #[inline]
    fn innermost_frame<M: Memory>(&self, memory: &M, tstate: usize) -> Option<usize> {
        walk::innermost_frame(memory, &self.layout, tstate, || !self.is_finalizing_elsewhere(|| tstate))
    }

    /// A function of its own: what else it did would take registers from its loops.
    #[inline(never)]
    fn find_change_from(&self, first: usize, memo: &mut PythonStackMemo) -> PythonStackChange {
        // SAFETY: the layout passed the self-test, and the frames are those of the calling thread.
        let memory = unsafe { Direct::new() };
        // Each constant layout gets a walk of its own, with its offsets inside the instructions.
        let change = match self.layout.version {
            0x030a => memo.find_change_from(&memory, &layout::PYTHON_3_10, first, 0),
            0x030b => memo.find_change_from(&memory, &layout::PYTHON_3_11, first, 0),
            0x030c => memo.find_change_from(&memory, &layout::PYTHON_3_12, first, 0),
            _ => memo.find_change_from(&memory, &self.layout, first, self.types.code),
        };
        change.unwrap_or(PythonStackChange::EMPTY)
    }

    /// True if another thread finalizes the interpreter. It frees the states of daemon threads
    /// while they still run native code.
    ///
    /// Only the state is freed. Its frames stay, and so do the code objects that they refer to:
    /// `_PyThreadState_DeleteExcept` (up to 3.12) and `_PyThreadState_DeleteList` (from 3.13 on)
    /// do not call `clear_datastack`, and `PyThreadState_Clear` does not touch frames
    /// (<https://github.com/python/cpython/blob/main/Python/pystate.c>). So a walk that began
    /// before remains valid.
    fn is_finalizing_elsewhere(&self, tstate: impl FnOnce() -> usize) -> bool {
        // SAFETY: a word of `_PyRuntime` that the interpreter itself reads and writes atomically.
        let finalizing = unsafe { &*self.finalizing }.load(Ordering::Acquire);
        finalizing != 0 && is_other_thread(finalizing, tstate())
    }

    /// True if objects of the interpreter may still be read after a wait for ring space.
    fn is_alive(&self) -> bool {
        // SAFETY: as in `find_change`.
        !self.is_finalizing_elsewhere(|| unsafe { (self.thread_state)() })
    }

    /// Copies the code object of a frame that [`Self::find_change`] has just found. `None` if it
    /// cannot be read, or if the interpreter has begun to finalize.
    pub(crate) fn copy_code(
        &self,
        frame: &FrameKey,
        scratch: &mut [u8; SCRATCH_BYTES],
    ) -> Option<CopiedCode> {
        if !self.is_alive() {
            return None;
        }
        // SAFETY: the frame was found on this thread's stack in this same call of the hook, so its
        // code object is alive.
        let memory = unsafe { Direct::new() };
        code::copy_code(&memory, &self.layout, &self.types, frame.code, scratch)
    }

    /// The byte offset of a frame's instruction in its bytecode; see [`code::offset_in_code`] for
    /// other values.
    pub(crate) fn offset_in_code(&self, frame: &FrameKey) -> i32 {
        let instr = walk::instruction_of(&self.layout, frame);
        if self.layout.code.copies.is_some() {
            // Another thread may replace and free the list of copies meanwhile.
            return code::offset_in_code(&Guarded, &self.layout, frame.code, instr);
        }
        if !self.is_alive() {
            return -1;
        }
        // SAFETY: as in `copy_code`.
        let memory = unsafe { Direct::new() };
        code::offset_in_code(&memory, &self.layout, frame.code, instr)
    }

    /// How the caller entered a frame.
    pub(crate) fn link_of(&self, frame: &FrameKey) -> FrameLink {
        walk::link_of(&self.layout, frame)
    }
}

/// Cold, so that the check costs a load and a branch.
#[cold]
fn is_other_thread(finalizing: usize, tstate: usize) -> bool {
    finalizing != tstate
}

/// The version as `major << 8 | minor` from `Py_GetVersion`. Before 3.11 there is no data symbol
/// for it.
fn version_from_text(function: usize) -> Option<u16> {
    if function == 0 {
        return None;
    }
    // SAFETY: the symbol is this function in every CPython; it takes nothing and needs neither the
    // GIL nor a started interpreter. It is called once, at the start of a session.
    let text = unsafe {
        let function = std::mem::transmute::<usize, unsafe extern "C" fn() -> *const libc::c_char>(function);
        std::ffi::CStr::from_ptr(function())
    };
    parse_version(text.to_str().ok()?)
}

fn parse_version(text: &str) -> Option<u16> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u8>);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(u16::from(major) << 8 | u16::from(minor))
}

#[cfg(test)]
mod tests {
    use super::fake_interpreter::{BYTES_TYPE, CODE_TYPE, FRAME_TYPE, FakeInterpreter, STRING_TYPE, TSTATE};
    use super::fake_interpreter::{VERSIONS, python};
    use super::*;

    /// The thread state of the thread that finalizes.
    const MAIN: usize = 0x7_0000;

    fn interpreter(layout: &PythonLayout, finalizing: &'static AtomicUsize) -> Interpreter {
        extern "C" fn thread_state() -> usize {
            TSTATE
        }
        let types =
            TypeAddresses { code: CODE_TYPE, string: STRING_TYPE, bytes: BYTES_TYPE, frame: FRAME_TYPE };
        let state = AtomicU8::new(TRUSTED);
        Interpreter { layout: *layout, types, thread_state, finalizing, state }
    }

    fn flag() -> &'static AtomicUsize {
        Box::leak(Box::new(AtomicUsize::new(0)))
    }

    /// A memory in which another thread begins to finalize when the thread state is read.
    struct FinalizedMeanwhile<'a> {
        fake: FakeInterpreter,
        at: usize,
        finalizing: &'a AtomicUsize,
    }

    impl Memory for FinalizedMeanwhile<'_> {
        fn read(&self, at: usize, out: &mut [u8]) -> Option<()> {
            assert_eq!(self.finalizing.load(Ordering::Relaxed), 0, "{at:#x} is read afterwards");
            if at == self.at {
                self.finalizing.store(MAIN, Ordering::Relaxed);
            }
            self.fake.read(at, out)
        }
    }

    #[test]
    fn thread_state_that_may_be_freed_is_not_followed() {
        for version in VERSIONS {
            let (fake, layout) = python(version, 3);
            let finalizing = flag();
            let interpreter = interpreter(&layout, finalizing);
            let memory = FinalizedMeanwhile { fake, at: TSTATE + layout.tstate_frame, finalizing };
            assert_eq!(interpreter.innermost_frame(&memory, TSTATE), None, "{version:#x}");
            finalizing.store(TSTATE, Ordering::Relaxed);
            let first = interpreter.innermost_frame(&memory.fake, TSTATE);
            assert_eq!(first, Some(0x2_0000), "{version:#x}: the thread that finalizes runs Python");
        }
    }

    #[test]
    fn code_object_is_not_read_after_a_wait_in_which_python_was_finalized() {
        let (_, layout) = python(0x030c, 1);
        let finalizing = flag();
        let interpreter = interpreter(&layout, finalizing);
        finalizing.store(MAIN, Ordering::Relaxed);
        // A read at this address would end the test.
        let frame = FrameKey { code: 8, instr: 16, tag: 0 };
        let mut scratch: Box<[u8; SCRATCH_BYTES]> =
            vec![0; SCRATCH_BYTES].into_boxed_slice().try_into().expect("of this size");
        assert_eq!(interpreter.copy_code(&frame, &mut scratch), None);
        assert_eq!(interpreter.offset_in_code(&frame), -1);
    }

    #[test]
    fn version_text_is_parsed() {
        assert_eq!(parse_version("3.8.18 (default, Jan  1 2026, 00:00:00) \n[GCC 12.2.0]"), Some(0x0308));
        assert_eq!(parse_version("3.10.0rc1 (main)"), Some(0x030a));
        for text in ["", "3", "3.x", "999.1"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }
}
