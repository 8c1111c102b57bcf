//! The memory layout of CPython's frames, by version.
//!
//! Without the GIL, the frames of a running thread can be read only by their memory layout, and a
//! wrong offset reads garbage. Versions from 3.13 on describe themselves (`described`, with a
//! checked cookie). For 3.10 to 3.12 there is a table here, which `scripts/generate/python-abi`
//! checks against the headers of installed releases. In any case the first capture of a session is
//! checked against the expected object types (`selftest`). The test suites compare every stack with
//! the one that CPython itself reports.
//!
//! Sources: CPython `Include/cpython/{pystate,code,frameobject,unicodeobject}.h`,
//! `Include/internal/pycore_{frame,runtime}.h`.

use crate::platform::process_memory::WINDOW_BYTES;

mod described;

pub(crate) use described::DEBUG_OFFSETS_BYTES;

/// How a frame stores its current instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstructionKind {
    /// A pointer into the bytecode, which is part of the code object.
    Pointer,
    /// A 32-bit index of code units, -1 before the first instruction. The bytecode is a bytes
    /// object.
    Index,
}

/// The memory layout of one CPython version. All offsets are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PythonLayout {
    /// The version as `major << 8 | minor`.
    pub version: u16,
    /// In `_PyRuntime`: the thread state that is finalizing the interpreter, or null.
    pub runtime_finalizing: usize,
    /// In the thread state: the pointer to the innermost frame, or to a `_PyCFrame`.
    pub tstate_frame: usize,
    /// In 3.11 and 3.12: the pointer to the innermost frame inside the `_PyCFrame`.
    pub cframe_frame: Option<usize>,
    /// In a frame: its caller.
    pub frame_previous: usize,
    /// In a frame: its code object. From 3.13 on, this may be any object, or null.
    pub frame_code: usize,
    /// Bits of that pointer that are not part of the address (3.14).
    pub frame_code_tags: usize,
    /// In a frame: the current instruction.
    pub frame_instr: usize,
    /// The form of the current instruction.
    pub instruction: InstructionKind,
    /// Two parts of a frame that hold its caller, its code and its instruction. They are compared
    /// to find out whether the frame has changed.
    pub frame_windows: [usize; 2],
    /// In a frame: one byte with the kind of its owner.
    pub frame_owner: usize,
    /// True if the code of a frame may be another object (from 3.13 on), so that its type must be
    /// checked.
    pub frame_runs_any_object: bool,
    /// From this owner value on, a frame is an entry from C or from the interpreter and runs no
    /// code.
    pub owner_without_code: Option<u8>,
    /// In a frame of 3.11: one byte that is nonzero if C entered it. Later versions have a separate
    /// frame between C and Python; in earlier versions C enters every frame.
    pub frame_is_entry: Option<usize>,
    /// Offsets in the headers of objects.
    pub object: ObjectLayout,
    /// Offsets in a code object.
    pub code: CodeLayout,
    /// In a compact ASCII string: the start of its characters.
    pub ascii_data: usize,
    /// In any other compact string: the start of its characters.
    pub compact_data: usize,
}

/// Offsets in a code object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeLayout {
    /// Offset of `co_filename`, a string.
    pub filename: usize,
    /// Offset of `co_name`, a string.
    pub name: usize,
    /// Offset of `co_qualname`; of `co_name` before 3.11.
    pub qualname: usize,
    /// Offset of `co_linetable`, a bytes object.
    pub line_table: usize,
    /// Offset of `co_firstlineno`, a 32-bit number.
    pub first_line: usize,
    /// Offset of `co_version`, a serial number (from 3.12 on).
    pub serial: Option<usize>,
    /// Offset of `_co_firsttraceable` (from 3.11 on), in code units: CPython does not show a frame
    /// before it.
    pub first_traceable: Option<usize>,
    /// Start of the bytecode; before 3.11 the offset of `co_code`, the pointer to it.
    pub bytecode: usize,
    /// In free-threaded builds from 3.14 on: the copies of the bytecode, one for each thread.
    pub copies: Option<BytecodeCopies>,
}

/// The bytecode copies of a code object in free-threaded builds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BytecodeCopies {
    /// Offset of `co_tlbc`: the pointer to a word with the number of copies, followed by their
    /// addresses.
    pub array: usize,
    /// The operations that come before the first line of a function.
    pub prologue: [u8; 2],
}

/// Offsets in the headers of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectLayout {
    /// Offset of `ob_type` in any object.
    pub ob_type: usize,
    /// Offset of `ob_size` in a variable-size object, and of `length` in a string.
    pub ob_size: usize,
    /// Offset of `hash` in a string; -1 means not computed yet.
    pub string_hash: usize,
    /// Offset of `state` in a string.
    pub string_state: usize,
    /// First bit of `kind` in `state`.
    pub string_kind_bit: u32,
    /// Start of the data in a bytes object.
    pub bytes_data: usize,
}

/// Object headers in the default builds of all versions.
pub(crate) const OBJECT: ObjectLayout = ObjectLayout {
    ob_type: 8,
    ob_size: 16,
    string_hash: 24,
    string_state: 32,
    string_kind_bit: 2,
    bytes_data: 32,
};

/// Object headers in free-threaded builds: with a thread, a lock and two reference counts.
pub(crate) const OBJECT_FREE_THREADED: ObjectLayout = ObjectLayout {
    ob_type: 24,
    ob_size: 32,
    string_hash: 40,
    string_state: 48,
    string_kind_bit: 2,
    bytes_data: 48,
};

/// The layout of CPython 3.10. Frames are objects.
pub(crate) const PYTHON_3_10: PythonLayout = PythonLayout {
    version: 0x030a,
    runtime_finalizing: 16,
    tstate_frame: 24,
    cframe_frame: None,
    frame_previous: 24,
    frame_code: 32,
    frame_code_tags: 0,
    frame_instr: 96,
    instruction: InstructionKind::Index,
    frame_windows: [24, 96],
    // Frames have no owner: every frame runs a code object.
    frame_owner: 0,
    frame_runs_any_object: false,
    owner_without_code: None,
    frame_is_entry: None,
    object: OBJECT,
    code: CodeLayout {
        filename: 104,
        name: 112,
        qualname: 112,
        line_table: 120,
        first_line: 40,
        serial: None,
        first_traceable: None,
        bytecode: 48,
        copies: None,
    },
    ascii_data: 48,
    compact_data: 72,
};

/// The owner value of a generator's frame.
pub(crate) const OWNER_GENERATOR: u8 = 1;

/// The layout of CPython 3.11.
pub(crate) const PYTHON_3_11: PythonLayout = PythonLayout {
    version: 0x030b,
    runtime_finalizing: 24,
    tstate_frame: 56,
    cframe_frame: Some(8),
    frame_previous: 48,
    frame_code: 32,
    frame_code_tags: 0,
    frame_instr: 56,
    instruction: InstructionKind::Pointer,
    frame_windows: [32, 48],
    frame_owner: 69,
    frame_runs_any_object: false,
    owner_without_code: None,
    frame_is_entry: Some(68),
    object: OBJECT,
    code: CodeLayout {
        filename: 112,
        name: 120,
        qualname: 128,
        line_table: 136,
        first_line: 72,
        serial: None,
        first_traceable: Some(168),
        bytecode: 184,
        copies: None,
    },
    ascii_data: 48,
    compact_data: 72,
};

/// The layout of CPython 3.12.
pub const PYTHON_3_12: PythonLayout = PythonLayout {
    version: 0x030c,
    runtime_finalizing: 24,
    tstate_frame: 56,
    cframe_frame: Some(0),
    frame_previous: 8,
    frame_code: 0,
    frame_code_tags: 0,
    frame_instr: 56,
    instruction: InstructionKind::Pointer,
    frame_windows: [0, 48],
    frame_owner: 70,
    frame_runs_any_object: false,
    owner_without_code: Some(3),
    frame_is_entry: None,
    object: OBJECT,
    code: CodeLayout {
        filename: 112,
        name: 120,
        qualname: 128,
        line_table: 136,
        first_line: 68,
        serial: Some(92),
        first_traceable: Some(176),
        bytecode: 192,
        copies: None,
    },
    ascii_data: 40,
    compact_data: 56,
};

/// The layout of a version, or an error that says why there is none.
///
/// `debug_offsets` are the first bytes of `_PyRuntime`, which are used from 3.13 on.
pub(crate) fn of_version(version: u16, debug_offsets: &[u8]) -> Result<PythonLayout, &'static str> {
    match version {
        0x030a => Ok(PYTHON_3_10),
        0x030b => Ok(PYTHON_3_11),
        0x030c => Ok(PYTHON_3_12),
        0x030d | 0x030e => described::from_debug_offsets(version, debug_offsets),
        _ => Err("this version of gpumemtrace reads the frames of CPython 3.10 to 3.14"),
    }
}

/// Two windows that cover three words of a frame; `None` if three would be needed.
fn windows_over(words: [usize; 3]) -> Option<[usize; 2]> {
    let start = |word: usize| word / WINDOW_BYTES * WINDOW_BYTES;
    let (first, last) = (start(*words.iter().min()?), start(*words.iter().max()?));
    words.iter().all(|word| word % 8 == 0 && [first, last].contains(&start(*word))).then_some([first, last])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_caller_code_and_instruction() {
        for layout in [PYTHON_3_11, PYTHON_3_12] {
            let words = [layout.frame_previous, layout.frame_code, layout.frame_instr];
            assert_eq!(windows_over(words), Some(layout.frame_windows));
        }
        assert_eq!(windows_over([0, 8, 16]), Some([0, 16]));
        assert_eq!(windows_over([0, 24, 48]), None, "three windows would be needed");
        assert_eq!(windows_over([0, 12, 16]), None, "not aligned words");
        let layout = PYTHON_3_10;
        for (field, bytes) in [(layout.frame_previous, 8), (layout.frame_code, 8), (layout.frame_instr, 4)] {
            let is_covered = |window: &usize| *window <= field && field + bytes <= window + WINDOW_BYTES;
            assert!(layout.frame_windows.iter().any(is_covered), "{field}");
        }
    }

    #[test]
    fn unknown_version_has_no_layout() {
        assert!(of_version(0x0307, &[]).is_err());
        assert!(of_version(0x030f, &[]).is_err());
    }
}
