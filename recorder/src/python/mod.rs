//! Python call sites of the calling thread, without the GIL.
//!
//! Constraint: the hook runs under PyTorch's allocator lock, with or without the GIL; taking the GIL there can deadlock,
//! and any other call may allocate. Consequence: the only Python function ever called is `PyGILState_GetThisThreadState`
//! (one thread-local read; null for a thread Python does not know); everything else is read from memory.

pub mod code;
#[cfg(test)]
mod fake;
pub mod layout;
pub mod memory;
pub mod text;
pub mod trail;
pub mod walk;

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use code::{Copied, SCRATCH_BYTES, Types};
use layout::Layout;
use memory::{Direct, Guarded, Memory};
use trail::{Change, Trail};

use crate::stack_cache::{FrameKey, MAX_DEPTH};

/// The interpreter in this process.
#[derive(Debug)]
pub struct Interpreter {
    layout: Layout,
    types: Types,
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
    pub fn find() -> Result<Option<Self>, String> {
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: a NUL-terminated name; looking up a symbol has no other effect.
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
        };
        let thread_state = symbol(c"PyGILState_GetThisThreadState");
        if thread_state == 0 {
            return Ok(None);
        }
        let hex = match symbol(c"Py_Version") {
            // Before 3.11 the version is no data symbol.
            0 => return Err("this Python is older than 3.11".to_owned()),
            // SAFETY: `Py_Version` is an unsigned long constant of the interpreter.
            at => unsafe { *(at as *const libc::c_ulong) },
        };
        let version = (hex >> 16) as u16;
        let mut description = [0u8; layout::DEBUG_OFFSETS_BYTES];
        let runtime = symbol(c"_PyRuntime");
        if runtime != 0 {
            // Not readable means not described; `of_version` refuses what needs it.
            let _ = Guarded.read(runtime, &mut description);
        }
        let layout = layout::of_version(version, &description)
            .map_err(|why| format!("Python {}.{}: {why}", version >> 8, version & 0xff))?;
        let types = Types {
            code: symbol(c"PyCode_Type"),
            string: symbol(c"PyUnicode_Type"),
            bytes: symbol(c"PyBytes_Type"),
        };
        if [types.code, types.string, types.bytes].contains(&0) {
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
    pub fn version(&self) -> u16 {
        self.layout.version
    }

    /// True when the self-test found frames it could not understand.
    pub fn is_refused(&self) -> bool {
        self.state.load(Ordering::Relaxed) == REFUSED
    }

    /// Finds out how the stack of the calling thread differs from the one it had before.
    #[inline]
    pub fn look(&self, trail: &mut Trail) -> Change {
        // SAFETY: a thread-local read inside the interpreter, allowed at any time on any thread.
        let tstate = unsafe { (self.thread_state)() };
        if tstate == 0 {
            return Change::NOTHING;
        }
        // An ending interpreter frees the states and frames of its daemon threads while they still run native code.
        // SAFETY: a word of `_PyRuntime` that the interpreter itself reads and writes atomically.
        let finalizing = unsafe { &*self.finalizing }.load(Ordering::Relaxed);
        if finalizing != 0 && finalizing != tstate {
            return Change::NOTHING;
        }
        match self.state.load(Ordering::Relaxed) {
            TRUSTED => {}
            REFUSED => return Change::NOTHING,
            _ => match selftest(&Guarded, &self.layout, &self.types, tstate) {
                Verdict::Trusted => self.state.store(TRUSTED, Ordering::Relaxed),
                Verdict::NothingToSee => return Change::NOTHING,
                Verdict::Refused => {
                    self.state.store(REFUSED, Ordering::Relaxed);
                    crate::say::say(&[
                        "the frames of this Python are not laid out as expected, so call sites are not recorded; ",
                        "allocations are. Please report the exact Python version.",
                    ]);
                    return Change::NOTHING;
                }
            },
        }
        // SAFETY: the layout passed the self-test, and the frames are those of the calling thread.
        let memory = unsafe { Direct::new() };
        // Constant layouts make walks of their own, with every offset in the instruction.
        let change = match self.layout.version {
            0x030b => trail.look(&memory, &layout::PYTHON_3_11, tstate, 0),
            0x030c => trail.look(&memory, &layout::PYTHON_3_12, tstate, 0),
            _ => trail.look(&memory, &self.layout, tstate, self.types.code),
        };
        change.unwrap_or(Change::NOTHING)
    }

    /// Copies the code object of a frame that [`Self::look`] just found.
    pub fn copy_code(&self, frame: &FrameKey, scratch: &mut [u8; SCRATCH_BYTES]) -> Option<Copied> {
        // SAFETY: the frame was found on this thread's stack in this same call of the hook, so its code object is alive.
        let memory = unsafe { Direct::new() };
        code::copy_code(&memory, &self.layout, &self.types, frame.code, scratch)
    }

    /// Byte offset of a frame's instruction in its bytecode; -1 if unknown.
    pub fn offset_in_code(&self, frame: &FrameKey) -> i32 {
        // SAFETY: as in `copy_code`.
        let memory = unsafe { Direct::new() };
        code::offset_in_code(&memory, &self.layout, frame.code, frame.instr)
    }
}

enum Verdict {
    Trusted,
    NothingToSee,
    Refused,
}

/// Walks the current frames without trusting anything: every frame must be at an instruction inside its bytecode, and most
/// must have a string as file name and bytes as line table (programs may use subclasses, which are not read).
#[cold]
#[inline(never)]
fn selftest<M: Memory>(memory: &M, layout: &Layout, types: &Types, tstate: usize) -> Verdict {
    let mut frames = [FrameKey::default(); MAX_DEPTH];
    let Some(walk) = walk::walk(memory, layout, tstate, types.code, &mut frames) else {
        return Verdict::Refused;
    };
    if walk.depth == 0 {
        return Verdict::NothingToSee;
    }
    let type_of = |object: usize| memory.word(object + layout::OB_TYPE);
    let frames = &frames[..walk.depth];
    let is_inside = |frame: &FrameKey| code::offset_in_code(memory, layout, frame.code, frame.instr) >= 0;
    let has_names = |frame: &&FrameKey| {
        // The interpreter's own shim frames may have no name at all.
        let is = |at: usize, wanted: usize| match memory.word(frame.code + at) {
            Some(0) => true,
            Some(object) => type_of(object) == Some(wanted),
            None => false,
        };
        is(layout.code.filename, types.string)
            && is(layout.code.qualname, types.string)
            && is(layout.code.line_table, types.bytes)
    };
    let is_sound = frames.iter().all(is_inside) && frames.iter().filter(has_names).count() * 2 > frames.len();
    if is_sound { Verdict::Trusted } else { Verdict::Refused }
}
