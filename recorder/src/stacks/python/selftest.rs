//! Checks the layout before any frame is trusted.
//!
//! A build with other options, or a release with other structs, would make the walk read garbage,
//! and a crash would end the program. So the first stack of a session is read through the kernel,
//! which refuses bad addresses. Every object on the way must have the interpreter's own type, and
//! every frame must be at an instruction of its bytecode.

use super::code::{self, TypeAddresses};
use super::layout::{InstructionKind, PythonLayout};
use super::{text, walk};
use crate::platform::process_memory::Memory;
use crate::stacks::cache::{FrameKey, MAX_DEPTH};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SelfTestOutcome {
    Trusted,
    NoFrames,
    Refused,
}

/// Checks the current frames of the thread state `tstate`.
///
/// All frames must run code objects and be at an instruction inside them, or right before the first
/// one. Most must have strings as names and bytes as line tables; programs may use subclasses,
/// which are not read.
#[cold]
#[inline(never)]
pub(super) fn selftest<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    types: &TypeAddresses,
    tstate: usize,
) -> SelfTestOutcome {
    let mut frames = [FrameKey::default(); MAX_DEPTH];
    let Some(walk) = walk::walk(memory, layout, tstate, types.code, &mut frames) else {
        return SelfTestOutcome::Refused;
    };
    if walk.depth == 0 {
        return SelfTestOutcome::NoFrames;
    }
    let frames = &frames[..walk.depth];
    let has_type = |object: usize, wanted: usize| memory.word(object + layout.object.ob_type) == Some(wanted);
    let is_at_instruction = |frame: &FrameKey| {
        let bytecode = match layout.instruction {
            InstructionKind::Pointer => true,
            InstructionKind::Index => memory
                .word(frame.code + layout.code.bytecode)
                .is_some_and(|bytecode| has_type(bytecode, types.bytes)),
        };
        has_type(frame.code, types.code)
            && bytecode
            && code::offset_in_code(memory, layout, frame.code, walk::instruction_of(layout, frame)) != -1
    };
    let has_names = |frame: &&FrameKey| {
        // The interpreter's own shim frames may have no name.
        let is = |at: usize, wanted: usize| match memory.word(frame.code + at) {
            Some(0) => true,
            Some(object) => {
                has_type(object, wanted)
                    && (wanted != types.string || is_compact_string(memory, layout, object))
            }
            None => false,
        };
        is(layout.code.filename, types.string)
            && is(layout.code.name, types.string)
            && is(layout.code.qualname, types.string)
            && is(layout.code.line_table, types.bytes)
    };
    let is_sound = have_frame_type(memory, layout, types, tstate)
        && frames.iter().all(is_at_instruction)
        && frames.iter().filter(has_names).count() * 2 > frames.len();
    if is_sound { SelfTestOutcome::Trusted } else { SelfTestOutcome::Refused }
}

fn is_compact_string<M: Memory>(memory: &M, layout: &PythonLayout, string: usize) -> bool {
    let state = memory.half(string + layout.object.string_state);
    state.and_then(|state| text::char_width(state, layout.object.string_kind_bit)).is_some()
}

/// Checks the type of the frames: before 3.11 they are objects.
fn have_frame_type<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    types: &TypeAddresses,
    tstate: usize,
) -> bool {
    if layout.instruction == InstructionKind::Pointer {
        return true;
    }
    let mut frame = walk::innermost_frame(memory, layout, tstate, || true);
    for _ in 0..MAX_DEPTH {
        match frame {
            Some(0) => return true,
            Some(at) if memory.word(at + layout.object.ob_type) == Some(types.frame) => {
                frame = memory.word(at + layout.frame_previous);
            }
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::fake_interpreter::{
        BYTES_TYPE, CODE_TYPE, FRAME_TYPE, FakeInterpreter, STRING_TYPE, STRINGS, TSTATE, VERSIONS, python,
    };
    use super::*;

    const TYPES: TypeAddresses =
        TypeAddresses { code: CODE_TYPE, string: STRING_TYPE, bytes: BYTES_TYPE, frame: FRAME_TYPE };

    fn outcome(fake: &FakeInterpreter, layout: &PythonLayout) -> SelfTestOutcome {
        selftest(fake, layout, &TYPES, TSTATE)
    }

    #[test]
    fn every_supported_version_is_trusted() {
        for version in VERSIONS {
            let (fake, layout) = python(version, 3);
            assert_eq!(outcome(&fake, &layout), SelfTestOutcome::Trusted, "{version:x}");
            let (fake, layout) = python(version, 0);
            assert_eq!(outcome(&fake, &layout), SelfTestOutcome::NoFrames, "{version:x}");
        }
    }

    #[test]
    fn layout_of_another_version_is_refused() {
        for version in VERSIONS {
            for other in VERSIONS {
                let ((fake, layout), (_, wrong)) = (python(version, 3), python(other, 3));
                // What the two error_text themselves with is not part of this test, but for the
                // heads of objects.
                let are_described = layout.frame_runs_any_object
                    && wrong.frame_runs_any_object
                    && layout.object.ob_type == wrong.object.ob_type;
                if !are_described && (PythonLayout { version: layout.version, ..wrong }) != layout {
                    assert_ne!(
                        outcome(&fake, &wrong),
                        SelfTestOutcome::Trusted,
                        "{version:x} read as {other:x}"
                    );
                }
            }
        }
    }

    #[test]
    fn one_wrong_field_is_enough_to_refuse() {
        for version in VERSIONS {
            let (_, layout) = python(version, 2);
            let code = 0x500_0000;
            let mut wrong = vec![
                (code + layout.object.ob_type, 0x1234),
                (0x2_0000 + layout.frame_instr, 0x7fff_fff0),
                (0x2_0000 + layout.frame_previous, 0xdead_0000),
                (STRINGS + layout.object.ob_type, 0x1234),
                (STRINGS + layout.object.string_state, 0),
                (0x900_0000 + layout.object.ob_type, 0x1234),
            ];
            if matches!(layout.instruction, InstructionKind::Index) {
                wrong.push((0x2_0000 + layout.object.ob_type, 0x1234));
            }
            for (at, value) in wrong {
                let (mut fake, layout) = python(version, 2);
                fake.put(at, value);
                let outcome = outcome(&fake, &layout);
                // From 3.13 on, a frame may run another object.
                let may_run = layout.frame_runs_any_object && at == code + layout.object.ob_type;
                assert!(may_run || outcome == SelfTestOutcome::Refused, "{version:x}: {at:x}");
            }
        }
    }
}
