//! Interpreters for tests: a map of bytes with the memory layout of a version.

use std::collections::HashMap;

use super::layout::{self, BytecodeCopies, CodeLayout, InstructionKind, ObjectLayout, PythonLayout};
use crate::platform::process_memory::Memory;

/// The memory of an interpreter, by address.
#[derive(Default)]
pub(super) struct FakeInterpreter(pub(super) HashMap<usize, u8>);

impl FakeInterpreter {
    pub(super) fn put(&mut self, at: usize, value: usize) {
        for (offset, byte) in value.to_le_bytes().into_iter().enumerate() {
            self.0.insert(at + offset, byte);
        }
    }

    /// Adds a frame with all fields readable.
    pub(super) fn put_frame(&mut self, layout: &PythonLayout, frame: usize) {
        (frame..frame + 0x80).step_by(8).for_each(|at| self.put(at, 0x33));
        self.put(frame + layout.object.ob_type, FRAME_TYPE);
    }

    /// Sets the instruction of a frame, counted in code units.
    pub(super) fn put_instruction(&mut self, layout: &PythonLayout, frame: usize, code: usize, units: usize) {
        let value = match layout.instruction {
            // All threads but the first run copies.
            InstructionKind::Pointer if layout.code.copies.is_some() => code + COPY + 2 * units,
            InstructionKind::Pointer => code + layout.code.bytecode + 2 * units,
            InstructionKind::Index => units,
        };
        self.put(frame + layout.frame_instr, value);
    }

    /// Adds a string without a computed hash.
    pub(super) fn put_string(&mut self, layout: &PythonLayout, at: usize, text: &str) {
        let ascii = text.is_ascii();
        let width = if ascii { 1 } else { 4 };
        let data = at + if ascii { layout.ascii_data } else { layout.compact_data };
        (at..data + 8).step_by(8).for_each(|at| self.put(at, 0));
        self.put(at + layout.object.ob_type, STRING_TYPE);
        self.put(at + layout.object.ob_size, text.chars().count());
        self.put(at + layout.object.string_hash, usize::MAX);
        self.put(
            at + layout.object.string_state,
            (width | 1 << 3 | usize::from(ascii) << 4) << layout.object.string_kind_bit,
        );
        for (index, c) in text.chars().enumerate() {
            for byte in 0..width {
                self.0.insert(data + index * width + byte, (c as u32).to_le_bytes()[byte]);
            }
        }
    }

    /// Adds a code object with eight instructions. `of` determines its name and its line table.
    pub(super) fn put_code(&mut self, layout: &PythonLayout, code: usize, of: usize) {
        let (table, bytecode, name) = (0x900_0000 + of * 0x100, 0x980_0000, STRINGS + of * 0x100);
        for at in (0..0x100).step_by(8) {
            self.put(code + at, 0x77 + of);
        }
        self.put(code + layout.object.ob_size, 8);
        self.put(code + layout.object.ob_type, CODE_TYPE);
        for bytes in [table, bytecode] {
            self.put(bytes + layout.object.ob_type, BYTES_TYPE);
            self.put(bytes + layout.object.ob_size, 16);
            self.put(bytes + layout.object.bytes_data, of);
            self.put(bytes + layout.object.bytes_data + 8, 0);
        }
        if let Some(at) = layout.code.first_traceable {
            for byte in 0..4 {
                self.0.insert(code + at + byte, 0);
            }
        }
        if let Some(copies) = layout.code.copies {
            self.put(code + copies.array, code + COPIES);
            let entries = [4, code + layout.code.bytecode, 0, code + COPY + 0x80, code + COPY];
            for (place, entry) in entries.into_iter().enumerate() {
                self.put(code + COPIES + 8 * place, entry);
            }
            (0..0x10).for_each(|at| self.put(code + COPY + at, 0));
        }
        self.put_string(layout, name, &format!("function_{of}"));
        for at in [layout.code.name, layout.code.qualname, layout.code.filename] {
            self.put(code + at, name);
        }
        self.put(code + layout.code.line_table, table);
        if matches!(layout.instruction, InstructionKind::Index) {
            self.put(code + layout.code.bytecode, bytecode);
        }
    }
}

impl Memory for FakeInterpreter {
    fn read(&self, at: usize, out: &mut [u8]) -> Option<()> {
        for (offset, byte) in out.iter_mut().enumerate() {
            *byte = *self.0.get(&(at + offset))?;
        }
        Some(())
    }
}

pub(super) const CODE_TYPE: usize = 0x9000;
pub(super) const STRING_TYPE: usize = 0x9100;
pub(super) const BYTES_TYPE: usize = 0x9200;
pub(super) const FRAME_TYPE: usize = 0x9300;
pub(super) const TSTATE: usize = 0x1_0000;
/// The address of the first string.
pub(super) const STRINGS: usize = 0xa00_0000;

/// Distance from a code object to the list of its bytecode copies.
const COPIES: usize = 0x200;
/// Distance from a code object to the copy that runs.
const COPY: usize = 0x300;

/// Flag in a version number: the free-threaded build.
pub(super) const FREE_THREADED: u16 = 0x8000;
/// All versions that have a layout.
pub(super) const VERSIONS: [u16; 7] =
    [0x030a, 0x030b, 0x030c, 0x030d, 0x030e, FREE_THREADED | 0x030d, FREE_THREADED | 0x030e];

/// A layout like those of 3.13 and later: the fields of 3.12 behind the longer headers of objects.
fn described(version: u16) -> PythonLayout {
    let base = layout::of_version(0x030c, &[]).unwrap();
    let is_threaded = version & FREE_THREADED != 0;
    let version = version & !FREE_THREADED;
    let is_3_14 = version == 0x030e;
    let (object, further) = if is_threaded {
        let string_kind_bit = if is_3_14 { 8 } else { 2 };
        (ObjectLayout { string_kind_bit, ..layout::OBJECT_FREE_THREADED }, 16)
    } else {
        (layout::OBJECT, 0)
    };
    let copies = BytecodeCopies { array: base.code.bytecode + further, prologue: [97, 60] };
    let copies = (is_threaded && is_3_14).then_some(copies);
    PythonLayout {
        version,
        tstate_frame: 72,
        cframe_frame: None,
        frame_runs_any_object: true,
        frame_code_tags: if is_3_14 { 3 } else { 0 },
        object,
        code: CodeLayout {
            filename: base.code.filename + further,
            name: base.code.name + further,
            qualname: base.code.qualname + further,
            line_table: base.code.line_table + further,
            first_line: base.code.first_line + further,
            serial: base.code.serial.map(|at| at + further),
            first_traceable: base.code.first_traceable.map(|at| at + further),
            bytecode: base.code.bytecode + further + if copies.is_some() { 8 } else { 0 },
            copies,
        },
        ascii_data: base.ascii_data + further,
        compact_data: base.compact_data + further,
        ..base
    }
}

/// An interpreter with frames at 0x2_0000, 0x2_0100, ..., which run code objects at 0x500_0000,
/// 0x500_0400, ...
pub(super) fn python(version: u16, frames: usize) -> (FakeInterpreter, PythonLayout) {
    let layout = match version {
        0x030d.. => described(version),
        _ => layout::of_version(version, &[]).unwrap(),
    };
    let mut fake = FakeInterpreter::default();
    let first = if frames == 0 { 0 } else { 0x2_0000 };
    match layout.cframe_frame {
        Some(inner) => {
            fake.put(TSTATE + layout.tstate_frame, 0x1_8000);
            fake.put(0x1_8000 + inner, first);
        }
        None => fake.put(TSTATE + layout.tstate_frame, first),
    }
    for i in 0..frames {
        let (frame, code) = (0x2_0000 + i * 0x100, 0x500_0000 + i * 0x400);
        fake.put_frame(&layout, frame);
        fake.put(frame + layout.frame_previous, if i + 1 < frames { frame + 0x100 } else { 0 });
        fake.put(frame + layout.frame_code, code);
        fake.put_instruction(&layout, frame, code, i % 8);
        if layout.code.first_traceable.is_some() {
            fake.0.insert(frame + layout.frame_owner, 0);
        }
        fake.put_code(&layout, code, i);
    }
    (fake, layout)
}
