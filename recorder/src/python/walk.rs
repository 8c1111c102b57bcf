//! Walking the frames of the calling thread.
//!
//! Constraint: no GIL, no Python API, a few nanoseconds a frame. Consequence: pointers are followed by the layout of the
//! version. Only the owning thread links and unlinks its frames, and while it is inside a hook the chain is complete; each
//! frame keeps its code object alive, and names and tables belong to the code object.
//!
//! A code object is told apart from another one that lived at the same address before by its serial number (3.12 on), or
//! by a fingerprint of what it points to and how its line table begins (3.11).

use super::layout::{BYTES_DATA, Layout, OB_TYPE};
use super::memory::Memory;
use crate::stack_cache::{FrameKey, MAX_DEPTH};

/// The outcome of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walk {
    /// Frames found.
    pub depth: usize,
    /// True when there were more than fit.
    pub truncated: bool,
}

/// Longest chain that is followed; a longer one is a loop, made by a wrong layout.
const MAX_LINKS: usize = 1 << 16;

/// Writes the frames of `tstate`, innermost first. `None` if something could not be read.
///
/// `code_type` is the address of `PyCode_Type`: from 3.13 a frame may run something that is no code object.
#[inline(always)]
#[allow(clippy::inline_always, reason = "with a constant layout every offset becomes part of an instruction")]
pub fn walk<M: Memory>(
    memory: &M,
    layout: &Layout,
    tstate: usize,
    code_type: usize,
    frames: &mut [FrameKey; MAX_DEPTH],
) -> Option<Walk> {
    let mut frame = memory.word(tstate + layout.tstate_frame)?;
    if let (Some(inner), true) = (layout.cframe_frame, frame != 0) {
        frame = memory.word(frame + inner)?;
    }
    let mut depth = 0;
    for _ in 0..MAX_LINKS {
        if frame == 0 {
            return Some(Walk { depth, truncated: false });
        }
        let from_c = match layout.owner_c_stack {
            Some(owner) => memory.byte(frame + layout.frame_owner)? == owner,
            None => false,
        };
        if !from_c {
            let code = memory.word(frame + layout.frame_code)?;
            let is_code =
                !layout.frame_runs_any_object || code != 0 && memory.word(code + OB_TYPE)? == code_type;
            if is_code {
                if depth == MAX_DEPTH {
                    return Some(Walk { depth, truncated: true });
                }
                let instr = memory.word(frame + layout.frame_instr)?;
                frames[depth] = FrameKey { code, instr, tag: code_tag(memory, layout, code)? };
                depth += 1;
            }
        }
        frame = memory.word(frame + layout.frame_previous)?;
    }
    None
}

/// What tells this code object apart from another one at the same address.
#[inline(always)]
#[allow(clippy::inline_always, reason = "part of the loop of `walk`")]
fn code_tag<M: Memory>(memory: &M, layout: &Layout, code: usize) -> Option<u64> {
    if let Some(serial) = layout.code.serial {
        let serial = memory.half(code + serial)?;
        if serial != 0 {
            return Some(u64::from(serial));
        }
    }
    // Independent rotations, because this runs for every frame of every event: an address and a few bits of each field keep
    // a place of their own.
    let table = memory.word(code + layout.code.line_table)?;
    let filename = memory.word(code + layout.code.filename)? as u64;
    let qualname = memory.word(code + layout.code.qualname)? as u64;
    let first_line = u64::from(memory.half(code + layout.code.first_line)?);
    // A bytes object ends in a NUL and its memory comes in steps of 16, so 8 bytes are there even when the table is shorter.
    let begins = memory.word(table + BYTES_DATA)? as u64;
    Some(
        table as u64
            ^ filename.rotate_left(16)
            ^ qualname.rotate_left(32)
            ^ begins.rotate_left(7)
            ^ first_line << 48,
    )
}

#[cfg(test)]
mod tests {
    use super::super::layout;
    use super::*;
    use std::collections::HashMap;

    /// An interpreter made of a map of bytes.
    #[derive(Default)]
    struct Fake(HashMap<usize, u8>);

    impl Fake {
        fn put(&mut self, at: usize, value: usize) {
            for (offset, byte) in value.to_le_bytes().into_iter().enumerate() {
                self.0.insert(at + offset, byte);
            }
        }
    }

    impl Memory for Fake {
        fn read(&self, at: usize, out: &mut [u8]) -> Option<()> {
            for (offset, byte) in out.iter_mut().enumerate() {
                *byte = *self.0.get(&(at + offset))?;
            }
            Some(())
        }
    }

    const CODE_TYPE: usize = 0x9000;
    const TSTATE: usize = 0x1_0000;

    /// Frames at 0x2_0000, 0x2_1000, ..., each running a code object at 0x5_0000, 0x5_1000, ...
    fn python(version: u16, frames: usize) -> (Fake, Layout) {
        let layout = match version {
            0x030d => Layout {
                version,
                tstate_frame: 72,
                cframe_frame: None,
                frame_runs_any_object: true,
                ..layout::of_version(0x030c, &[]).unwrap()
            },
            _ => layout::of_version(version, &[]).unwrap(),
        };
        let mut fake = Fake::default();
        let first = if frames == 0 { 0 } else { 0x2_0000 };
        match layout.cframe_frame {
            Some(inner) => {
                fake.put(TSTATE + layout.tstate_frame, 0x1_8000);
                fake.put(0x1_8000 + inner, first);
            }
            None => fake.put(TSTATE + layout.tstate_frame, first),
        }
        for i in 0..frames {
            let (frame, code, table) = (0x2_0000 + i * 0x100, 0x500_0000 + i * 0x400, 0x900_0000 + i * 0x100);
            fake.put(frame + layout.frame_previous, if i + 1 < frames { frame + 0x100 } else { 0 });
            fake.put(frame + layout.frame_code, code);
            fake.put(frame + layout.frame_instr, code + layout.code.bytecode + 2 * i);
            fake.0.insert(frame + layout.frame_owner, 0);
            for at in (0..0x100).step_by(8) {
                fake.put(code + at, 0x77);
            }
            fake.put(code + OB_TYPE, CODE_TYPE);
            fake.put(code + layout.code.line_table, table);
            fake.put(table + BYTES_DATA, i);
        }
        (fake, layout)
    }

    fn frames_of(fake: &Fake, layout: &Layout) -> Option<(Walk, Vec<FrameKey>)> {
        let mut frames = [FrameKey::default(); MAX_DEPTH];
        let walk = walk(fake, layout, TSTATE, CODE_TYPE, &mut frames)?;
        Some((walk, frames[..walk.depth].to_vec()))
    }

    #[test]
    fn frames_come_innermost_first_in_every_version() {
        for version in [0x030b, 0x030c, 0x030d] {
            let (fake, layout) = python(version, 3);
            let (walk, frames) = frames_of(&fake, &layout).unwrap();
            assert_eq!(walk, Walk { depth: 3, truncated: false });
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
    fn what_is_no_code_object_is_passed_over() {
        let (mut fake, layout) = python(0x030d, 2);
        fake.put(0x500_0000 + OB_TYPE, 0x1234);
        assert_eq!(frames_of(&fake, &layout).unwrap().0.depth, 1);
    }

    #[test]
    fn a_deep_stack_keeps_its_innermost_frames_and_says_so() {
        let (fake, layout) = python(0x030b, MAX_DEPTH + 1);
        let (walk, frames) = frames_of(&fake, &layout).unwrap();
        assert_eq!(walk, Walk { depth: MAX_DEPTH, truncated: true });
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
        for (version, change) in [(0x030b_u16, "table"), (0x030b, "name"), (0x030c, "serial")] {
            let (mut fake, layout) = python(version, 1);
            let before = frames_of(&fake, &layout).unwrap().1[0];
            match change {
                "table" => fake.put(0x900_0000 + BYTES_DATA, 99),
                "name" => fake.put(0x500_0000 + layout.code.qualname, 0x88),
                _ => fake.put(0x500_0000 + layout.code.serial.unwrap(), 0x78),
            }
            let after = frames_of(&fake, &layout).unwrap().1[0];
            assert_eq!((before.code, before.instr), (after.code, after.instr));
            assert_ne!(before.tag, after.tag, "{change}");
        }
    }
}
