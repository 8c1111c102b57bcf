//! Python call sites of the calling thread, without the GIL.
//!
//! Constraint: the hook runs under PyTorch's allocator lock, with or without the GIL; taking the GIL there can deadlock,
//! and any other call may allocate. Consequence: the only Python function called there is `PyGILState_GetThisThreadState`
//! (one thread-local read; null for a thread Python does not know); everything else is read from memory.

pub(crate) mod code;
#[cfg(test)]
mod fake;
mod fingerprint;
pub(crate) mod layout;
pub(crate) mod memo;
mod selftest;
pub(crate) mod text;
pub(crate) mod walk;

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::platform::process_memory::{Direct, Guarded, Memory};
use code::{CopiedCode, SCRATCH_BYTES, TypeAddresses};
use layout::PythonLayout;
use memo::{PythonStackChange, PythonStackMemo};
use selftest::{SelfTestOutcome, selftest};

use crate::stacks::cache::FrameKey;
use gpumemtrace_format::Link;

/// The interpreter in this process.
#[derive(Debug)]
pub(crate) struct Interpreter {
    layout: PythonLayout,
    types: TypeAddresses,
    thread_state: unsafe extern "C" fn() -> usize,
    /// Where the interpreter says that it is ending.
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
    /// Looks for an interpreter among the loaded modules. `Ok(None)`: there is none. An error says why its frames cannot
    /// be read.
    pub(crate) fn find() -> Result<Option<Self>, String> {
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: a NUL-terminated name; looking up a symbol has no other effect.
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
        };
        let thread_state = symbol(c"PyGILState_GetThisThreadState");
        if thread_state == 0 {
            return Ok(None);
        }
        let version = match symbol(c"Py_Version") {
            0 => version_in_words(symbol(c"Py_GetVersion")).ok_or("this Python does not say its version")?,
            // SAFETY: `Py_Version` is an unsigned long constant of the interpreter.
            at => (unsafe { *(at as *const libc::c_ulong) } >> 16) as u16,
        };
        let mut description = [0u8; layout::DEBUG_OFFSETS_BYTES];
        let runtime = symbol(c"_PyRuntime");
        if runtime != 0 {
            // Not readable means not described; `of_version` refuses what needs it.
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
        // SAFETY: the symbol is this function in every CPython; it takes nothing and returns a pointer.
        let thread_state =
            unsafe { std::mem::transmute::<usize, unsafe extern "C" fn() -> usize>(thread_state) };
        if runtime == 0 {
            return Err("the interpreter does not export _PyRuntime".to_owned());
        }
        let finalizing = (runtime + layout.runtime_finalizing) as *const AtomicUsize;
        Ok(Some(Self { layout, types, thread_state, finalizing, state: AtomicU8::new(UNTESTED) }))
    }

    /// (major << 8 | minor).
    pub(crate) fn version(&self) -> u16 {
        self.layout.version
    }

    /// Finds out how the stack of the calling thread differs from the one it had before.
    #[inline]
    pub(crate) fn look(&self, trail: &mut PythonStackMemo) -> PythonStackChange {
        // SAFETY: a thread-local read inside the interpreter, allowed at any time on any thread.
        let tstate = unsafe { (self.thread_state)() };
        if tstate == 0 {
            return PythonStackChange::NOTHING;
        }
        // An ending interpreter frees the states and frames of its daemon threads while they still run native code.
        // SAFETY: a word of `_PyRuntime` that the interpreter itself reads and writes atomically.
        let finalizing = unsafe { &*self.finalizing }.load(Ordering::Relaxed);
        if finalizing != 0 && finalizing != tstate {
            return PythonStackChange::NOTHING;
        }
        match self.state.load(Ordering::Relaxed) {
            TRUSTED => {}
            REFUSED => return PythonStackChange::NOTHING,
            _ => match selftest(&Guarded, &self.layout, &self.types, tstate) {
                SelfTestOutcome::Trusted => self.state.store(TRUSTED, Ordering::Relaxed),
                SelfTestOutcome::NoFrames => return PythonStackChange::NOTHING,
                SelfTestOutcome::Refused => {
                    self.state.store(REFUSED, Ordering::Relaxed);
                    crate::diagnostics::print_diagnostic(&[
                        "the frames of this Python are not laid out as expected, so call sites are not recorded; ",
                        "allocations are. Please report the exact Python version.",
                    ]);
                    return PythonStackChange::NOTHING;
                }
            },
        }
        // SAFETY: the layout passed the self-test, and the frames are those of the calling thread.
        let memory = unsafe { Direct::new() };
        // Constant layouts make walks of their own, with every offset in the instruction.
        let change = match self.layout.version {
            0x0308 => trail.look(&memory, &layout::PYTHON_3_8, tstate, 0),
            0x0309 => trail.look(&memory, &layout::PYTHON_3_9, tstate, 0),
            0x030a => trail.look(&memory, &layout::PYTHON_3_10, tstate, 0),
            0x030b => trail.look(&memory, &layout::PYTHON_3_11, tstate, 0),
            0x030c => trail.look(&memory, &layout::PYTHON_3_12, tstate, 0),
            _ => trail.look(&memory, &self.layout, tstate, self.types.code),
        };
        change.unwrap_or(PythonStackChange::NOTHING)
    }

    /// Copies the code object of a frame that [`Self::look`] just found.
    pub(crate) fn copy_code(
        &self,
        frame: &FrameKey,
        scratch: &mut [u8; SCRATCH_BYTES],
    ) -> Option<CopiedCode> {
        // SAFETY: the frame was found on this thread's stack in this same call of the hook, so its code object is alive.
        let memory = unsafe { Direct::new() };
        code::copy_code(&memory, &self.layout, &self.types, frame.code, scratch)
    }

    /// Byte offset of a frame's instruction in its bytecode, or one of the numbers that mean there is none.
    pub(crate) fn offset_in_code(&self, frame: &FrameKey) -> i32 {
        let instr = walk::instruction_of(&self.layout, frame);
        if self.layout.code.copies.is_some() {
            // Another thread may replace the list of copies and free it meanwhile.
            return code::offset_in_code(&Guarded, &self.layout, frame.code, instr);
        }
        // SAFETY: as in `copy_code`.
        let memory = unsafe { Direct::new() };
        code::offset_in_code(&memory, &self.layout, frame.code, instr)
    }

    /// How a frame came to be under its caller.
    pub(crate) fn link_of(&self, frame: &FrameKey) -> Link {
        walk::link_of(&self.layout, frame)
    }
}

/// Before 3.11 the version is no data symbol: (major << 8 | minor) out of `3.8.18 (default, ...`.
fn version_in_words(function: usize) -> Option<u16> {
    if function == 0 {
        return None;
    }
    // SAFETY: the symbol is this function in every CPython; it takes nothing and needs neither the GIL nor a started
    // interpreter. It is called once, at the start of a session.
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
    use super::*;

    #[test]
    fn a_version_in_words_is_read() {
        assert_eq!(parse_version("3.8.18 (default, Jan  1 2026, 00:00:00) \n[GCC 12.2.0]"), Some(0x0308));
        assert_eq!(parse_version("3.10.0rc1 (main)"), Some(0x030a));
        for text in ["", "3", "3.x", "999.1"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }
}
