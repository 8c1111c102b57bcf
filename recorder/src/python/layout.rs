//! Where CPython keeps what we read, by version.
//!
//! Constraint: the frames of a running thread can be read without the GIL only by their memory layout, and a wrong offset
//! would read garbage. Consequence: 3.13 and later describe themselves (`_PyRuntime.debug_offsets`, cookie checked);
//! 3.11 and 3.12 have a table here, taken from the headers of the releases; either way the first capture of a session is
//! checked against the types it must find (`selftest`) before any frame is believed. The suites compare
//! every stack with the one CPython itself sees.
//!
//! Sources: CPython `Include/cpython/{pystate,code,unicodeobject}.h`, `Include/internal/pycore_{frame,runtime}.h`.

use super::memory::WINDOW_BYTES;

/// How the interpreter stores what we need. All offsets in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
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
    /// Pointer to the current instruction.
    pub frame_instr: usize,
    /// Two parts of a frame that hold its caller, its code and its instruction: what is compared to see whether it changed.
    pub frame_windows: [usize; 2],
    /// One byte that says whose frame it is.
    pub frame_owner: usize,
    /// From 3.13 a frame may run something that is no code object: its type must be looked at.
    pub frame_runs_any_object: bool,
    /// The owner value that marks an entry from C, which runs no code.
    pub owner_c_stack: Option<u8>,
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
    /// `co_qualname`.
    pub qualname: usize,
    /// `co_linetable`.
    pub line_table: usize,
    /// `co_firstlineno`.
    pub first_line: usize,
    /// `co_version`, a serial number, from 3.12.
    pub serial: Option<usize>,
    /// Start of the bytecode.
    pub bytecode: usize,
}

/// `ob_type` of any object.
pub const OB_TYPE: usize = 8;
/// `ob_size` of a variable-size object; `length` of a string.
pub const OB_SIZE: usize = 16;
/// `state` of a string.
pub const STRING_STATE: usize = 32;
/// Start of the bytes of a bytes object.
pub const BYTES_DATA: usize = 32;

/// CPython 3.11.
pub const PYTHON_3_11: Layout = Layout {
    version: 0x030b,
    runtime_finalizing: 24,
    tstate_frame: 56,
    cframe_frame: Some(8),
    frame_previous: 48,
    frame_code: 32,
    frame_instr: 56,
    frame_windows: [32, 48],
    frame_owner: 69,
    frame_runs_any_object: false,
    owner_c_stack: None,
    code: CodeLayout {
        filename: 112,
        name: 120,
        qualname: 128,
        line_table: 136,
        first_line: 72,
        serial: None,
        bytecode: 184,
    },
    ascii_data: 48,
    compact_data: 72,
};

/// CPython 3.12.
pub const PYTHON_3_12: Layout = Layout {
    version: 0x030c,
    runtime_finalizing: 24,
    tstate_frame: 56,
    cframe_frame: Some(0),
    frame_previous: 8,
    frame_code: 0,
    frame_instr: 56,
    frame_windows: [0, 48],
    frame_owner: 70,
    frame_runs_any_object: false,
    owner_c_stack: Some(3),
    code: CodeLayout {
        filename: 112,
        name: 120,
        qualname: 128,
        line_table: 136,
        first_line: 68,
        serial: Some(92),
        bytecode: 192,
    },
    ascii_data: 40,
    compact_data: 56,
};

/// Bytes of `_PyRuntime` that [`of_version`] wants to see for 3.13.
pub const DEBUG_OFFSETS_BYTES: usize = 584;

/// The layout of a version.
///
/// `debug_offsets` are the first bytes of `_PyRuntime`, used from 3.13 on. The error says why there is none.
pub fn of_version(version: u16, debug_offsets: &[u8]) -> Result<Layout, &'static str> {
    match version {
        0x030b => Ok(PYTHON_3_11),
        0x030c => Ok(PYTHON_3_12),
        0x030d => from_debug_offsets(version, debug_offsets),
        _ => Err("this version of gpumemtrace reads the frames of CPython 3.11, 3.12 and 3.13"),
    }
}

/// Reads the self-description of 3.13. Positions: `_Py_DebugOffsets` in `pycore_runtime.h` of 3.13.
fn from_debug_offsets(version: u16, bytes: &[u8]) -> Result<Layout, &'static str> {
    let word = |at: usize| -> Result<usize, &'static str> {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        Ok(u64::from_le_bytes(bytes.ok_or("its self-description is too short")?) as usize)
    };
    // An offset beyond this is no offset into any of these structs.
    let offset = |at: usize| match word(at)? {
        value if value < 4096 => Ok(value),
        _ => Err("its self-description has an impossible offset"),
    };
    if bytes.get(..8) != Some(b"xdebugpy") {
        return Err("its self-description is missing");
    }
    if (word(8)? >> 16) as u16 != version {
        return Err("its self-description is of another version");
    }
    if word(16)? != 0 {
        return Err("free-threaded builds are not supported yet");
    }
    let ascii = offset(536 + 24)?;
    let (previous, code, instr) = (offset(224 + 8)?, offset(224 + 16)?, offset(224 + 24)?);
    Ok(Layout {
        version,
        runtime_finalizing: offset(32)?,
        tstate_frame: offset(184)?,
        cframe_frame: None,
        frame_previous: previous,
        frame_code: code,
        frame_instr: instr,
        frame_windows: windows_over([previous, code, instr])
            .ok_or("its frames have their fields too far apart")?,
        frame_owner: offset(264)?,
        frame_runs_any_object: true,
        owner_c_stack: Some(3),
        code: CodeLayout {
            filename: offset(272 + 8)?,
            name: offset(272 + 16)?,
            qualname: offset(272 + 24)?,
            line_table: offset(272 + 32)?,
            first_line: offset(272 + 40)?,
            // Not described; unchanged since 3.12, and only compared, never followed.
            serial: Some(92),
            bytecode: offset(344)?,
        },
        ascii_data: ascii,
        // struct PyCompactUnicodeObject = PyASCIIObject + utf8_length + utf8
        compact_data: ascii + 16,
    })
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

    /// `_PyRuntime.debug_offsets` of CPython 3.13.0, x86-64, release build: what the headers give.
    fn described_3_13() -> Vec<u8> {
        let mut bytes = vec![0u8; DEBUG_OFFSETS_BYTES];
        bytes[..8].copy_from_slice(b"xdebugpy");
        let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(8, 0x030d_00f0);
        put(32, 608);
        put(184, 72);
        for (at, value) in [(8, 8), (16, 0), (24, 56), (40, 70)] {
            put(224 + at, value);
        }
        for (at, value) in [(8, 112), (16, 120), (24, 128), (32, 136), (40, 68), (72, 200)] {
            put(272 + at, value);
        }
        put(536 + 24, 40);
        bytes
    }

    #[test]
    fn the_self_description_is_read_and_doubted() {
        let layout = of_version(0x030d, &described_3_13()).unwrap();
        assert_eq!(layout.runtime_finalizing, 608);
        assert_eq!((layout.tstate_frame, layout.frame_owner, layout.code.bytecode), (72, 70, 200));
        assert_eq!((layout.ascii_data, layout.compact_data), (40, 56));

        let mut threaded = described_3_13();
        threaded[16] = 1;
        assert!(of_version(0x030d, &threaded).is_err());
        let mut garbage = described_3_13();
        garbage[190] = 1;
        assert!(of_version(0x030d, &garbage).is_err());
        assert!(of_version(0x030d, &described_3_13()[..100]).is_err());
        assert!(of_version(0x030d, &[0; DEBUG_OFFSETS_BYTES]).is_err());
    }

    #[test]
    fn windows_cover_what_is_compared() {
        for layout in [PYTHON_3_11, PYTHON_3_12] {
            let words = [layout.frame_previous, layout.frame_code, layout.frame_instr];
            assert_eq!(windows_over(words), Some(layout.frame_windows));
        }
        assert_eq!(windows_over([0, 8, 16]), Some([0, 16]));
        assert_eq!(windows_over([0, 24, 48]), None, "three windows would be needed");
        assert_eq!(windows_over([0, 12, 16]), None, "no words");
    }

    #[test]
    fn a_version_we_do_not_know_has_no_layout() {
        assert!(of_version(0x030a, &[]).is_err());
        assert!(of_version(0x0310, &described_3_13()).is_err());
    }
}
