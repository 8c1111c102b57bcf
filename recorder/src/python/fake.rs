//! Interpreters for tests: memory that is a map, laid out like a version's.

use std::collections::HashMap;

use super::layout::{self, BYTES_DATA, Layout, OB_TYPE};
use super::memory::Memory;

/// An interpreter made of a map of bytes.
#[derive(Default)]
pub(super) struct Fake(pub(super) HashMap<usize, u8>);

impl Fake {
    pub(super) fn put(&mut self, at: usize, value: usize) {
        for (offset, byte) in value.to_le_bytes().into_iter().enumerate() {
            self.0.insert(at + offset, byte);
        }
    }
}

impl Fake {
    /// A frame whose fields are all readable.
    pub(super) fn put_frame(&mut self, frame: usize) {
        (frame..frame + 0x50).step_by(8).for_each(|at| self.put(at, 0x33));
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

pub(super) const CODE_TYPE: usize = 0x9000;
pub(super) const TSTATE: usize = 0x1_0000;

/// Frames at 0x2_0000, 0x2_1000, ..., each running a code object at 0x5_0000, 0x5_1000, ...
pub(super) fn python(version: u16, frames: usize) -> (Fake, Layout) {
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
        fake.put_frame(frame);
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
