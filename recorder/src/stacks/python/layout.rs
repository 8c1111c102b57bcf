//! Where CPython keeps what we read, by version.
//!
//! Constraint: the frames of a running thread can be read without the GIL only by their memory layout, and a wrong offset
//! would read garbage. Consequence: 3.13 and later error_text themselves (`described`, cookie checked); 3.8 to 3.12 have a
//! table here, which `scripts/python-abi` holds against the headers of installed releases; either way the first capture
//! of a session is checked against the types it must find (`selftest`) before any frame is believed. The suites compare
//! every stack with the one CPython itself sees.
//!
//! Sources: CPython `Include/cpython/{pystate,code,frameobject,unicodeobject}.h`,
//! `Include/internal/pycore_{frame,runtime}.h`.

use crate::platform::process_memory::WINDOW_BYTES;

mod described;

pub(crate) use described::DEBUG_OFFSETS_BYTES;

/// How a frame says where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstructionKind {
    /// By a pointer into the bytecode, which is part of the code object.
    Pointer,
    /// By a 32-bit number, -1 before the first instruction; the bytecode is a bytes object.
    Index {
        /// Bytes that it counts.
        unit: usize,
    },
}

/// How the interpreter stores what we need. All offsets in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PythonLayout {
    /// (major, minor) as 0x030b.
    pub version: u16,
    /// In `_PyRuntime`: the thread state that is finalizing the interpreter, or null.
    pub runtime_finalizing: usize,
    /// From the thread state to the pointer followed next.
    pub tstate_frame: usize,
    /// 3.11, 3.12: that pointer is a `_PyCFrame`, which holds the frame here.
    pub cframe_frame: Option<usize>,
    /// Caller of a frame.
    pub frame_previous: usize,
    /// Code object of a frame (3.13: any object, or null).
    pub frame_code: usize,
    /// Bits of that pointer which are no part of the address (3.14).
    pub frame_code_tags: usize,
    /// The current instruction.
    pub frame_instr: usize,
    /// What is found there.
    pub instruction: InstructionKind,
    /// Two parts of a frame that hold its caller, its code and its instruction: what is compared to see whether it changed.
    pub frame_windows: [usize; 2],
    /// One byte that says whose frame it is.
    pub frame_owner: usize,
    /// From 3.13 a frame may run something that is no code object: its type must be looked at.
    pub frame_runs_any_object: bool,
    /// From this owner value on a frame is an entry from C or from the interpreter, and runs no code.
    pub owner_without_code: Option<u8>,
    /// 3.11: one byte that says whether it was entered from C. Later versions have a frame of their own between C and Python;
    /// before, each frame is entered so.
    pub frame_is_entry: Option<usize>,
    /// Heads of objects.
    pub object: ObjectLayout,
    /// Code object fields.
    pub code: CodeLayout,
    /// Start of the characters of a compact ASCII string.
    pub ascii_data: usize,
    /// Start of the characters of any other compact string.
    pub compact_data: usize,
}

/// Fields of a code object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeLayout {
    /// `co_filename`.
    pub filename: usize,
    /// `co_name`.
    pub name: usize,
    /// `co_qualname`; `co_name` before 3.11.
    pub qualname: usize,
    /// `co_linetable`; `co_lnotab` before 3.10.
    pub line_table: usize,
    /// `co_firstlineno`.
    pub first_line: usize,
    /// `co_version`, a serial number, from 3.12.
    pub serial: Option<usize>,
    /// `_co_firsttraceable`, from 3.11: a frame that has not come so far (in code units) is not shown.
    pub first_traceable: Option<usize>,
    /// Start of the bytecode; before 3.11 the pointer to it, `co_code`.
    pub bytecode: usize,
    /// `co_tlbc`, in free-threaded builds from 3.14 on: the pointer to an array of copies of the bytecode, one for each thread.
    pub copies: Option<BytecodeCopies>,
}

/// Bytecode of which each thread has a copy of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BytecodeCopies {
    /// `co_tlbc` of a code object: pointer to a word with the number of copies, and as many pointers to them.
    pub array: usize,
    /// Operations that come before the first line of a function.
    pub prologue: [u8; 2],
}

/// Heads of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectLayout {
    /// `ob_type` of any object.
    pub ob_type: usize,
    /// `ob_size` of a variable-size object; `length` of a string.
    pub ob_size: usize,
    /// `hash` of a string; -1 if nobody has asked for it.
    pub string_hash: usize,
    /// `state` of a string.
    pub string_state: usize,
    /// The first bit of `kind` there.
    pub string_kind_bit: u32,
    /// Start of the bytes of a bytes object.
    pub bytes_data: usize,
}

/// Default builds of all versions.
pub(crate) const OBJECT: ObjectLayout = ObjectLayout {
    ob_type: 8,
    ob_size: 16,
    string_hash: 24,
    string_state: 32,
    string_kind_bit: 2,
    bytes_data: 32,
};

/// Free-threaded builds: the head of an object has a thread, a lock and two reference counts.
pub(crate) const OBJECT_FREE_THREADED: ObjectLayout = ObjectLayout {
    ob_type: 24,
    ob_size: 32,
    string_hash: 40,
    string_state: 48,
    string_kind_bit: 2,
    bytes_data: 48,
};

/// CPython 3.8. Its frames are objects, and their instruction is a number of bytes.
pub(crate) const PYTHON_3_8: PythonLayout = PythonLayout {
    version: 0x0308,
    runtime_finalizing: 16,
    tstate_frame: 24,
    cframe_frame: None,
    frame_previous: 24,
    frame_code: 32,
    frame_code_tags: 0,
    frame_instr: 104,
    instruction: InstructionKind::Index { unit: 1 },
    frame_windows: [24, 96],
    // There are no owners: every frame runs a code object.
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

/// CPython 3.9.
pub(crate) const PYTHON_3_9: PythonLayout = PythonLayout { version: 0x0309, ..PYTHON_3_8 };

/// CPython 3.10. The instruction is a number of code units.
pub(crate) const PYTHON_3_10: PythonLayout = PythonLayout {
    version: 0x030a,
    frame_instr: 96,
    instruction: InstructionKind::Index { unit: 2 },
    ..PYTHON_3_8
};

/// Owner of the frame of a generator.
pub(crate) const OWNER_GENERATOR: u8 = 1;

/// CPython 3.11.
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

/// CPython 3.12.
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

/// The layout of a version.
///
/// `debug_offsets` are the first bytes of `_PyRuntime`, used from 3.13 on. The error says why there is none.
pub(crate) fn of_version(version: u16, debug_offsets: &[u8]) -> Result<PythonLayout, &'static str> {
    match version {
        0x0308 => Ok(PYTHON_3_8),
        0x0309 => Ok(PYTHON_3_9),
        0x030a => Ok(PYTHON_3_10),
        0x030b => Ok(PYTHON_3_11),
        0x030c => Ok(PYTHON_3_12),
        0x030d | 0x030e => described::from_debug_offsets(version, debug_offsets),
        _ => Err("this version of gpumemtrace reads the frames of CPython 3.8 to 3.14"),
    }
}

/// Two windows that cover three words of a frame.
fn windows_over(words: [usize; 3]) -> Option<[usize; 2]> {
    let start = |word: usize| word / WINDOW_BYTES * WINDOW_BYTES;
    let (first, last) = (start(*words.iter().min()?), start(*words.iter().max()?));
    words.iter().all(|word| word % 8 == 0 && [first, last].contains(&start(*word))).then_some([first, last])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_what_is_compared() {
        for layout in [PYTHON_3_11, PYTHON_3_12] {
            let words = [layout.frame_previous, layout.frame_code, layout.frame_instr];
            assert_eq!(windows_over(words), Some(layout.frame_windows));
        }
        assert_eq!(windows_over([0, 8, 16]), Some([0, 16]));
        assert_eq!(windows_over([0, 24, 48]), None, "three windows would be needed");
        assert_eq!(windows_over([0, 12, 16]), None, "no words");
        for layout in [PYTHON_3_8, PYTHON_3_9, PYTHON_3_10] {
            for (field, bytes) in
                [(layout.frame_previous, 8), (layout.frame_code, 8), (layout.frame_instr, 4)]
            {
                let is_covered = |window: &usize| *window <= field && field + bytes <= window + WINDOW_BYTES;
                assert!(layout.frame_windows.iter().any(is_covered), "{:x}: {field}", layout.version);
            }
        }
    }

    #[test]
    fn a_version_we_do_not_know_has_no_layout() {
        assert!(of_version(0x0307, &[]).is_err());
        assert!(of_version(0x030f, &[]).is_err());
    }
}
