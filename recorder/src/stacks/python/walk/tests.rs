//! Walks frames of fake interpreters of every version.

use super::super::fake_interpreter::{CODE_TYPE, FakeInterpreter, STRINGS, TSTATE, VERSIONS, python};
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
        assert_eq!(walk, WalkExtent { depth: 3, is_truncated: false });
        let codes: Vec<usize> = frames.iter().map(|frame| frame.code).collect();
        assert_eq!(codes, [0x500_0000, 0x500_0400, 0x500_0800], "{version:x}");
    }
}

#[test]
fn thread_without_frames_gives_an_empty_stack() {
    let (mut fake, layout) = python(0x030c, 0);
    assert_eq!(frames_of(&fake, &layout).unwrap().0.depth, 0);
    fake.put(TSTATE + layout.tstate_frame, 0);
    assert_eq!(frames_of(&fake, &layout).unwrap().0.depth, 0);
}

#[test]
fn entry_frames_from_c_are_hidden() {
    let (mut fake, layout) = python(0x030c, 3);
    fake.0.insert(0x2_0100 + layout.frame_owner, 3);
    let (_, frames) = frames_of(&fake, &layout).unwrap();
    assert_eq!(frames.len(), 2);
}

#[test]
fn reference_tags_are_masked_from_the_address() {
    let (mut fake, layout) = python(0x030e, 3);
    fake.put(0x2_0000 + layout.frame_code, 0x500_0001);
    // The interpreter's frame between C and Python refers to another object.
    fake.put(0x2_0100 + layout.frame_code, 0xdead_0003);
    fake.0.insert(0x2_0100 + layout.frame_owner, 4);
    let codes: Vec<usize> = frames_of(&fake, &layout).unwrap().1.iter().map(|frame| frame.code).collect();
    assert_eq!(codes, [0x500_0000, 0x500_0800]);
}

#[test]
fn frame_before_its_first_traceable_instruction_is_hidden() {
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
        // The frame of a generator is complete by then.
        fake.0.insert(0x2_0100 + layout.frame_owner, 1);
        assert_eq!(frames_of(&fake, &layout).unwrap().1.len(), 3, "{version:x}");
    }
}

#[test]
fn frame_without_code_object_is_hidden() {
    let (mut fake, layout) = python(0x030d, 2);
    fake.put(0x500_0000 + layout.object.ob_type, 0x1234);
    assert_eq!(frames_of(&fake, &layout).unwrap().0.depth, 1);
}

#[test]
fn deep_stack_keeps_its_innermost_frames_and_is_truncated() {
    let (fake, layout) = python(0x030b, MAX_DEPTH + 1);
    let (walk, frames) = frames_of(&fake, &layout).unwrap();
    assert_eq!(walk, WalkExtent { depth: MAX_DEPTH, is_truncated: true });
    assert_eq!(frames[0].code, 0x500_0000);
}

#[test]
fn unreadable_chain_or_loop_is_refused() {
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
fn new_code_object_at_the_same_address_gets_another_tag() {
    for (version, change) in [(0x030a_u16, "table"), (0x030b, "name"), (0x030c, "serial")] {
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
