//! Walking the frames of the calling thread.
//!
//! Constraint: no GIL, no Python API, a few nanoseconds a frame. Consequence: pointers are followed by the layout of the
//! version. Only the owning thread links and unlinks its frames, and while it is inside a hook the chain is complete; each
//! frame keeps its code object alive, and names and tables belong to the code object.
//!
//! A code object is told apart from another one that lived at the same address before by its serial number (3.12 on), or
//! by a fingerprint of its names and its line table (`fingerprint`).

use gpumemtrace_format::Link;

use super::fingerprint::{RecentFingerprints, fingerprint};
use super::layout::{BytecodeCopies, InstructionKind, OWNER_GENERATOR, PythonLayout};
use crate::platform::process_memory::{Memory, WINDOW_BYTES, Window};
use crate::stacks::cache::{FrameKey, MAX_DEPTH};

/// The outcome of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WalkExtent {
    /// Frames found.
    pub depth: usize,
    /// True when there were more than fit.
    pub truncated: bool,
}

/// What a frame held when it was met. One cache line: all of them are compared at every event.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C, align(64))]
pub(crate) struct FrameFingerprint {
    /// Its address.
    pub frame: usize,
    /// Where the number is that tells what it runs apart from what ran there before.
    mark_at: usize,
    /// Its caller, what it runs and where (and what lies between, which seldom changes).
    windows: [Window; 2],
    /// The number.
    mark: u64,
}

/// A frame that was met.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct FrameRecord {
    /// What it held.
    pub seen: FrameFingerprint,
    /// What it runs; all zero in entries from C and other frames that have no place in a stack.
    pub key: FrameKey,
}

/// In [`FrameKey::instr`] of an instruction that is given by its address, which is even: the frame was entered from C.
const ENTERED_FROM_C: usize = 1;

/// The address of an instruction, or its index.
pub(crate) fn instruction_of(layout: &PythonLayout, key: &FrameKey) -> usize {
    match layout.instruction {
        InstructionKind::Pointer => key.instr & !ENTERED_FROM_C,
        InstructionKind::Index { .. } => key.instr,
    }
}

/// How the frame came to be under its caller.
pub(crate) fn link_of(layout: &PythonLayout, key: &FrameKey) -> Link {
    match layout.instruction {
        InstructionKind::Pointer if key.instr & ENTERED_FROM_C == 0 => Link::Python,
        _ => Link::C,
    }
}

/// What a frame runs that has no place in a stack.
const NOTHING: FrameKey = FrameKey { code: 0, instr: 0, tag: 0 };

impl FrameRecord {
    /// Whether it has a place in a stack.
    #[inline]
    pub(crate) fn counts(&self) -> bool {
        self.key != NOTHING
    }
}

/// Longest chain that is followed; a longer one is a loop, made by a wrong layout.
pub(crate) const MAX_LINKS: usize = 1 << 16;

/// The innermost frame of a thread; 0 if it has none.
#[inline(always)]
#[allow(clippy::inline_always, reason = "with a constant layout every offset becomes part of an instruction")]
pub(crate) fn innermost<M: Memory>(memory: &M, layout: &PythonLayout, tstate: usize) -> Option<usize> {
    let frame = memory.word(tstate + layout.tstate_frame)?;
    match layout.cframe_frame {
        Some(inner) if frame != 0 => memory.word(frame + inner),
        _ => Some(frame),
    }
}

/// Reads a frame. `None` if something could not be read.
///
/// `code_type` is the address of `PyCode_Type`: from 3.13 a frame may run something that is no code object.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
pub(crate) fn meet<M: Memory>(
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
    let windows_at = windows_at(layout, frame);
    let mut windows = [[0; WINDOW_BYTES]; 2];
    memory.read(windows_at[0], &mut windows[0])?;
    memory.read(windows_at[1], &mut windows[1])?;
    let key = if runs_code {
        let at = frame + layout.frame_instr;
        let instr = match layout.instruction {
            InstructionKind::Pointer => memory.word(at)?,
            InstructionKind::Index { .. } => memory.half(at)? as usize,
        };
        FrameKey { code, instr, tag: code_tag(memory, layout, code)? ^ entry_mark(memory, layout, frame)? }
    } else {
        NOTHING
    };
    let is_shown = runs_code && !is_incomplete(memory, layout, frame, &key)?;
    let entered = usize::from(is_shown && is_entered_from_c(memory, layout, frame)?) * ENTERED_FROM_C;
    let has_tag = is_shown || runs_code && layout.code.serial.is_none();
    let (mark_at, mark) = if has_tag {
        (code + layout.code.serial.unwrap_or(0), key.tag)
    } else {
        // What has no place in a stack runs nothing that has, unless its owner is another one.
        let at = frame + layout.frame_owner / 4 * 4;
        (at, u64::from(memory.half(at)?))
    };
    let key = if is_shown { FrameKey { instr: key.instr | entered, ..key } } else { NOTHING };
    Some(FrameRecord { seen: FrameFingerprint { frame, mark_at, windows, mark }, key })
}

/// True for a frame that CPython itself does not show: it is still being made, or it is one of the interpreter's own, in
/// which nothing comes so far (what lies between a class that is called and its `__init__`).
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
fn is_incomplete<M: Memory>(memory: &M, layout: &PythonLayout, frame: usize, key: &FrameKey) -> Option<bool> {
    let Some(at) = layout.code.first_traceable else { return Some(false) };
    let start = key.code + layout.code.bytecode;
    let first = start + 2 * memory.half(key.code + at)? as usize;
    let is_early = match layout.code.copies {
        None => key.instr < first,
        // Where the thread's copy begins is told by an array that other threads may replace; the operation itself tells as much.
        Some(BytecodeCopies { prologue, .. }) => {
            (start..first).contains(&key.instr) || prologue.contains(&memory.byte(key.instr)?)
        }
    };
    Some(is_early && memory.byte(frame + layout.frame_owner)? != OWNER_GENERATOR)
}

/// Whether C entered the frame, in a version that addresses instructions. Where frames stand between C and Python, its caller is
/// one: that one is compared, like any other, before anything further in.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
fn is_entered_from_c<M: Memory>(memory: &M, layout: &PythonLayout, frame: usize) -> Option<bool> {
    match (layout.frame_is_entry, layout.owner_without_code) {
        (Some(at), _) => Some(memory.byte(frame + at)? != 0),
        (None, Some(owner)) => {
            let caller = memory.word(frame + layout.frame_previous)?;
            Some(caller == 0 || memory.byte(caller + layout.frame_owner)? >= owner)
        }
        // Instructions have numbers, which have no room for it, and all frames are entered from C.
        (None, None) => Some(false),
    }
}

/// Where the frame itself says that C entered it: part of what is compared.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
fn entry_mark<M: Memory>(memory: &M, layout: &PythonLayout, frame: usize) -> Option<u64> {
    layout.frame_is_entry.map_or(Some(0), |at| memory.byte(frame + at).map(u64::from))
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
fn windows_at(layout: &PythonLayout, frame: usize) -> [usize; 2] {
    [frame + layout.frame_windows[0], frame + layout.frame_windows[1]]
}

/// True if a frame that was met before still runs the same at the same place, for the same caller. May say no where it is so.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
pub(crate) fn is_unchanged<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    seen: &FrameFingerprint,
    recent: &mut RecentFingerprints,
) -> Option<bool> {
    // What runs here is alive, so only after this may anything of it be read.
    if !memory.both_hold(windows_at(layout, seen.frame), &seen.windows)? {
        return Some(false);
    }
    let mark = match layout.code.serial {
        Some(_) => u64::from(memory.half(seen.mark_at)?),
        None => recent.of(memory, layout, seen.mark_at)? ^ entry_mark(memory, layout, seen.frame)?,
    };
    Some(mark == seen.mark)
}

/// Writes the frames of `tstate`, innermost first. `None` if something could not be read.
pub(crate) fn walk<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    tstate: usize,
    code_type: usize,
    frames: &mut [FrameKey; MAX_DEPTH],
) -> Option<WalkExtent> {
    let mut frame = innermost(memory, layout, tstate)?;
    let mut depth = 0;
    for _ in 0..MAX_LINKS {
        if frame == 0 {
            return Some(WalkExtent { depth, truncated: false });
        }
        let met = meet(memory, layout, code_type, frame)?;
        if met.counts() {
            if depth == MAX_DEPTH {
                return Some(WalkExtent { depth, truncated: true });
            }
            frames[depth] = met.key;
            depth += 1;
        }
        frame = memory.word(frame + layout.frame_previous)?;
    }
    None
}

/// What tells this code object apart from another one at the same address.
#[inline(always)]
#[allow(clippy::inline_always, reason = "part of the loop of `walk`")]
fn code_tag<M: Memory>(memory: &M, layout: &PythonLayout, code: usize) -> Option<u64> {
    match layout.code.serial {
        None => fingerprint(memory, layout, code),
        Some(serial) => match memory.half(code + serial)? {
            0 => without_serial(memory, layout, code),
            serial => Some(u64::from(serial)),
        },
    }
}

/// Serial numbers run out after 2^32 code objects, and are taken away from functions that are changed.
#[cold]
#[inline(never)]
fn without_serial<M: Memory>(memory: &M, layout: &PythonLayout, code: usize) -> Option<u64> {
    fingerprint(memory, layout, code)
}

#[cfg(test)]
mod tests {
    use super::super::fake::{CODE_TYPE, FakeInterpreter, STRINGS, TSTATE, VERSIONS, python};
    use super::*;

    fn frames_of(fake: &FakeInterpreter, layout: &PythonLayout) -> Option<(WalkExtent, Vec<FrameKey>)> {
        let mut frames = [FrameKey::default(); MAX_DEPTH];
        let walk = walk(fake, layout, TSTATE, CODE_TYPE, &mut frames)?;
        Some((walk, frames[..walk.depth].to_vec()))
    }

    #[test]
    fn frames_come_innermost_first_in_every_version() {
        for version in VERSIONS {
            let (fake, layout) = python(version, 3);
            let (walk, frames) = frames_of(&fake, &layout).unwrap();
            assert_eq!(walk, WalkExtent { depth: 3, truncated: false });
            let codes: Vec<usize> = frames.iter().map(|frame| frame.code).collect();
            assert_eq!(codes, [0x500_0000, 0x500_0400, 0x500_0800], "{version:x}");
        }
    }

    #[test]
    fn a_thread_without_frames_has_none() {
        let (mut fake, layout) = python(0x030c, 0);
        assert_eq!(frames_of(&fake, &layout).unwrap().0.depth, 0);
        fake.put(TSTATE + layout.tstate_frame, 0);
        assert_eq!(frames_of(&fake, &layout).unwrap().0.depth, 0);
    }

    #[test]
    fn entries_from_c_are_passed_over() {
        let (mut fake, layout) = python(0x030c, 3);
        fake.0.insert(0x2_0100 + layout.frame_owner, 3);
        let (_, frames) = frames_of(&fake, &layout).unwrap();
        assert_eq!(frames.len(), 2);
    }

    #[test]
    fn the_tags_of_a_reference_are_no_part_of_its_address() {
        let (mut fake, layout) = python(0x030e, 3);
        fake.put(0x2_0000 + layout.frame_code, 0x500_0001);
        // What the interpreter put there between C and Python refers to something else.
        fake.put(0x2_0100 + layout.frame_code, 0xdead_0003);
        fake.0.insert(0x2_0100 + layout.frame_owner, 4);
        let codes: Vec<usize> = frames_of(&fake, &layout).unwrap().1.iter().map(|frame| frame.code).collect();
        assert_eq!(codes, [0x500_0000, 0x500_0800]);
    }

    #[test]
    fn a_frame_that_has_not_come_so_far_is_passed_over() {
        for version in VERSIONS.into_iter().filter(|version| version & 0xff > 0x0a) {
            let (mut fake, layout) = python(version, 3);
            let at = 0x500_0400 + layout.code.first_traceable.unwrap();
            for byte in 0..4 {
                fake.0.insert(at + byte, u8::from(byte == 0) * 2);
            }
            if let Some(copies) = layout.code.copies {
                let instr = fake.word(0x2_0100 + layout.frame_instr).unwrap();
                fake.0.insert(instr, copies.prologue[1]);
            }
            assert_eq!(frames_of(&fake, &layout).unwrap().1.len(), 2, "{version:x}");
            // A generator is made by then.
            fake.0.insert(0x2_0100 + layout.frame_owner, 1);
            assert_eq!(frames_of(&fake, &layout).unwrap().1.len(), 3, "{version:x}");
        }
    }

    #[test]
    fn what_is_no_code_object_is_passed_over() {
        let (mut fake, layout) = python(0x030d, 2);
        fake.put(0x500_0000 + layout.object.ob_type, 0x1234);
        assert_eq!(frames_of(&fake, &layout).unwrap().0.depth, 1);
    }

    #[test]
    fn a_deep_stack_keeps_its_innermost_frames_and_says_so() {
        let (fake, layout) = python(0x030b, MAX_DEPTH + 1);
        let (walk, frames) = frames_of(&fake, &layout).unwrap();
        assert_eq!(walk, WalkExtent { depth: MAX_DEPTH, truncated: true });
        assert_eq!(frames[0].code, 0x500_0000);
    }

    #[test]
    fn an_unreadable_chain_or_a_loop_is_refused() {
        let (mut fake, layout) = python(0x030b, 2);
        fake.put(0x2_0100 + layout.frame_previous, 0xdead_0000);
        assert_eq!(frames_of(&fake, &layout), None);
        let (mut fake, layout) = python(0x030c, 2);
        for i in 0..2 {
            fake.0.insert(0x2_0000 + i * 0x100 + layout.frame_owner, 3);
        }
        fake.put(0x2_0100 + layout.frame_previous, 0x2_0000);
        assert_eq!(frames_of(&fake, &layout), None);
    }

    #[test]
    fn a_new_code_object_at_an_old_address_is_another_frame() {
        for (version, change) in [(0x0308_u16, "table"), (0x030b, "name"), (0x030c, "serial")] {
            let (mut fake, layout) = python(version, 1);
            let before = frames_of(&fake, &layout).unwrap().1[0];
            match change {
                "table" => fake.put(0x900_0000 + layout.object.bytes_data, 99),
                "name" => fake.put_string(&layout, STRINGS, "another"),
                _ => fake.put(0x500_0000 + layout.code.serial.unwrap(), 0x78),
            }
            let after = frames_of(&fake, &layout).unwrap().1[0];
            assert_eq!((before.code, before.instr), (after.code, after.instr));
            assert_ne!(before.tag, after.tag, "{change}");
        }
    }
}
