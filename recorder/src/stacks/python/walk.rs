//! Walks the Python frames of the calling thread.
//!
//! A walk needs neither the GIL nor the Python API and takes a few nanoseconds a frame: it follows
//! pointers by the memory layout of the version. Only the owning thread links and unlinks its
//! frames, and while it is inside a hook the chain is complete. Each frame keeps its code object
//! alive, which in turn keeps names and line table alive.
//!
//! Another code object may have lived at the same address before. The serial number distinguishes
//! both (from 3.12 on), or a fingerprint of names and line table ([`super::fingerprint`]).

use std::hint::select_unpredictable;
use std::sync::atomic::{Ordering, fence};

use gpumemtrace_format::FrameLink;

use super::fingerprint::{RecentFingerprints, code_fingerprint};
use super::layout::{BytecodeCopies, InstructionKind, OWNER_GENERATOR, PythonLayout};
use crate::platform::process_memory::{Memory, Window};
use crate::stacks::cache::{FrameKey, MAX_DEPTH, WalkExtent};

/// The content of a frame when it was read. Fills one cache line, because all frames of a stack are
/// compared at every event.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C, align(64))]
pub(crate) struct FrameContent {
    /// Address of the frame.
    pub(crate) frame: usize,
    /// Address of the number that distinguishes the code object from an earlier one at the same
    /// address.
    check_at: usize,
    /// The parts of the frame that hold caller, code object and instruction.
    windows: [Window; 2],
    /// The number at `check_at`, or a fingerprint of the code object there.
    check: u64,
}

/// A frame that was read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct FrameRecord {
    /// The content to compare at the next event.
    pub content: FrameContent,
    /// The frame's code and instruction. All zero in frames that stacks do not show, such as
    /// entries from C.
    pub key: FrameKey,
}

/// Set in [`FrameKey::instr`] if C entered the frame. Addresses of instructions are even.
const ENTERED_FROM_C: usize = 1;

/// The address of a frame's instruction, or its index.
pub(crate) fn instruction_of(layout: &PythonLayout, key: &FrameKey) -> usize {
    match layout.instruction {
        InstructionKind::Pointer => key.instr & !ENTERED_FROM_C,
        InstructionKind::Index => key.instr,
    }
}

/// How the caller entered the frame.
pub(crate) fn link_of(layout: &PythonLayout, key: &FrameKey) -> FrameLink {
    match layout.instruction {
        InstructionKind::Pointer if key.instr & ENTERED_FROM_C == 0 => FrameLink::Python,
        _ => FrameLink::C,
    }
}

/// The key of a frame that stacks do not show.
const HIDDEN: FrameKey = FrameKey { code: 0, instr: 0, tag: 0 };

impl FrameRecord {
    /// Whether stacks show this frame.
    #[inline]
    pub(crate) fn is_shown(&self) -> bool {
        is_shown(&self.key)
    }
}

/// Whether stacks show the frame of this key. Code objects do not lie at address 0.
#[inline]
pub(crate) fn is_shown(key: &FrameKey) -> bool {
    key.code != HIDDEN.code
}

/// Longest chain that is followed. A longer one is a loop, which a wrong layout causes.
pub(crate) const MAX_LINKS: usize = 1 << 16;

/// The address of the innermost frame of a thread; 0 if it has none. `None` if memory cannot be
/// read, or if `is_alive` denies that the thread state existed when it was read.
#[inline(always)]
#[allow(clippy::inline_always, reason = "with a constant layout every offset becomes part of an instruction")]
pub(crate) fn innermost_frame<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    tstate: usize,
    is_alive: impl Fn() -> bool,
) -> Option<usize> {
    let read = |at| {
        let word = memory.word(at)?;
        // The check must not be made before the word is read.
        fence(Ordering::Acquire);
        is_alive().then_some(word)
    };
    let frame = read(tstate + layout.tstate_frame)?;
    match layout.cframe_frame {
        Some(inner) if frame != 0 => read(frame + inner),
        _ => Some(frame),
    }
}

/// Reads a frame. Returns `None` if memory cannot be read.
///
/// `code_type` is the address of `PyCode_Type`: from 3.13 on, the code of a frame may be another
/// object.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
pub(crate) fn read_frame<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    code_type: usize,
    frame: usize,
) -> Option<FrameRecord> {
    let code = memory.word(frame + layout.frame_code)? & !layout.frame_code_tags;
    let from_c = match layout.owner_without_code {
        Some(owner) => memory.byte(frame + layout.frame_owner)? >= owner,
        None => false,
    };
    let runs_code = !from_c
        && (!layout.frame_runs_any_object
            || code != 0 && memory.word(code + layout.object.ob_type)? == code_type);
    let addresses = window_addresses(layout, frame);
    let windows = [memory.window(addresses[0])?, memory.window(addresses[1])?];
    let key = if runs_code {
        let at = frame + layout.frame_instr;
        let instr = match layout.instruction {
            InstructionKind::Pointer => memory.word(at)?,
            InstructionKind::Index => memory.half(at)? as usize,
        };
        FrameKey { code, instr, tag: code_tag(memory, layout, code)? ^ entry_flag(memory, layout, frame)? }
    } else {
        HIDDEN
    };
    let is_shown = runs_code && !is_incomplete(memory, layout, frame, &key)?;
    let entered = usize::from(is_shown && is_entered_from_c(memory, layout, frame)?) * ENTERED_FROM_C;
    let has_tag = is_shown || runs_code && layout.code.serial.is_none();
    let (check_at, check) = if has_tag {
        (code + layout.code.serial.unwrap_or(0), key.tag)
    } else {
        // A hidden frame stays hidden unless its owner changes.
        let at = frame + layout.frame_owner / 4 * 4;
        (at, u64::from(memory.half(at)?))
    };
    let key = if is_shown { FrameKey { instr: key.instr | entered, ..key } } else { HIDDEN };
    Some(FrameRecord { content: FrameContent { frame, check_at, windows, check }, key })
}

/// True for a frame that CPython itself does not show: it is still being set up, or it is internal.
/// One such internal frame stands between a class that is called and its `__init__`.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
fn is_incomplete<M: Memory>(memory: &M, layout: &PythonLayout, frame: usize, key: &FrameKey) -> Option<bool> {
    let Some(at) = layout.code.first_traceable else { return Some(false) };
    let start = key.code + layout.code.bytecode;
    let first = start + 2 * memory.half(key.code + at)? as usize;
    let is_early = match layout.code.copies {
        None => key.instr < first,
        // Other threads may replace the array that says where this thread's copy begins. The
        // operation itself is enough.
        Some(BytecodeCopies { prologue, .. }) => {
            (start..first).contains(&key.instr) || prologue.contains(&memory.byte(key.instr)?)
        }
    };
    Some(is_early && memory.byte(frame + layout.frame_owner)? != OWNER_GENERATOR)
}

/// Whether C entered the frame, in versions that address instructions. Versions with a frame
/// between C and Python have it as the caller, which is compared like any other frame.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
fn is_entered_from_c<M: Memory>(memory: &M, layout: &PythonLayout, frame: usize) -> Option<bool> {
    match (layout.frame_is_entry, layout.owner_without_code) {
        (Some(at), _) => Some(memory.byte(frame + at)? != 0),
        (None, Some(owner)) => {
            let caller = memory.word(frame + layout.frame_previous)?;
            Some(caller == 0 || memory.byte(caller + layout.frame_owner)? >= owner)
        }
        // Instructions are indexes, which have no spare bit, and C enters every frame.
        (None, None) => Some(false),
    }
}

/// The frame's own flag that C entered it. It is part of the comparison.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
fn entry_flag<M: Memory>(memory: &M, layout: &PythonLayout, frame: usize) -> Option<u64> {
    layout.frame_is_entry.map_or(Some(0), |at| memory.byte(frame + at).map(u64::from))
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
fn window_addresses(layout: &PythonLayout, frame: usize) -> [usize; 2] {
    [frame + layout.frame_windows[0], frame + layout.frame_windows[1]]
}

/// True if a frame still runs the same code at the same instruction for the same caller. May return
/// false for an unchanged frame.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
pub(crate) fn is_unchanged<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    content: &FrameContent,
    recent: &mut RecentFingerprints,
) -> Option<bool> {
    // The code object is alive only if the windows are unchanged, so nothing of it may be read
    // before.
    if !memory.are_windows_unchanged(window_addresses(layout, content.frame), &content.windows)? {
        return Some(false);
    }
    let check = match layout.code.serial {
        Some(_) => u64::from(memory.half(content.check_at)?),
        None => recent.get(memory, layout, content.check_at)? ^ entry_flag(memory, layout, content.frame)?,
    };
    Some(check == content.check)
}

/// The same as [`is_unchanged`] for a frame that must be on the stack, without a branch that
/// depends on the answer where code objects have serial numbers.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
pub(crate) fn is_unchanged_unpredictably<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    content: &FrameContent,
    recent: &mut RecentFingerprints,
) -> Option<bool> {
    if layout.code.serial.is_none() {
        return is_unchanged(memory, layout, content, recent);
    }
    let are_same = memory.are_windows_unchanged(window_addresses(layout, content.frame), &content.windows)?;
    // If the code object may be gone, a word of the frame is read instead.
    let check_at = select_unpredictable(are_same, content.check_at, content.frame + layout.frame_previous);
    let is_same_code = u64::from(memory.half(check_at)?) == content.check;
    Some(are_same & is_same_code)
}

/// Writes the frames of the thread state `tstate`, innermost first. Returns `None` if memory cannot
/// be read.
pub(crate) fn walk<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    tstate: usize,
    code_type: usize,
    frames: &mut [FrameKey; MAX_DEPTH],
) -> Option<WalkExtent> {
    let mut frame = innermost_frame(memory, layout, tstate, || true)?;
    let mut depth = 0;
    for _ in 0..MAX_LINKS {
        if frame == 0 {
            return Some(WalkExtent { depth, is_truncated: false });
        }
        let record = read_frame(memory, layout, code_type, frame)?;
        if record.is_shown() {
            if depth == MAX_DEPTH {
                return Some(WalkExtent { depth, is_truncated: true });
            }
            frames[depth] = record.key;
            depth += 1;
        }
        frame = memory.word(frame + layout.frame_previous)?;
    }
    None
}

/// The tag that distinguishes a code object from another one at the same address.
#[inline(always)]
#[allow(clippy::inline_always, reason = "part of the loop of `walk`")]
fn code_tag<M: Memory>(memory: &M, layout: &PythonLayout, code: usize) -> Option<u64> {
    match layout.code.serial {
        None => code_fingerprint(memory, layout, code),
        Some(serial) => match memory.half(code + serial)? {
            0 => tag_without_serial(memory, layout, code),
            serial => Some(u64::from(serial)),
        },
    }
}

/// Serial numbers run out after 2^32 code objects, and a modified function loses its number.
#[cold]
#[inline(never)]
fn tag_without_serial<M: Memory>(memory: &M, layout: &PythonLayout, code: usize) -> Option<u64> {
    code_fingerprint(memory, layout, code)
}

#[cfg(test)]
mod tests;
