//! The self-description of CPython 3.13 and later: `_Py_DebugOffsets`, the first bytes of
//! `_PyRuntime`.
//!
//! The description is made for readers of the same release, and its own fields move from version to
//! version. So the positions below belong to one version each; `scripts/generate/python-abi` checks
//! them against the headers. Cookie and version must be right, and one impossible offset refuses
//! the whole description. In free-threaded builds objects have longer headers, and from 3.14 on
//! each thread runs its own copy of the bytecode.

use super::{
    BytecodeCopies, CodeLayout, InstructionKind, OBJECT, OBJECT_FREE_THREADED, ObjectLayout, PythonLayout,
    windows_over,
};

/// Number of bytes of `_PyRuntime` that are read.
pub(crate) const DEBUG_OFFSETS_BYTES: usize = 648;

/// Positions in the self-description of one version, in bytes.
struct DebugOffsetPositions {
    /// Position of the field `runtime_state.finalizing`.
    finalizing: usize,
    /// Position of the field `thread_state.current_frame`.
    current_frame: usize,
    /// Position of `interpreter_frame.previous`; `executable` and `instr_ptr` follow.
    previous: usize,
    /// Position of the field `interpreter_frame.owner`.
    owner: usize,
    /// Position of `code_object.filename`; `name`, `qualname`, `linetable` and `firstlineno`
    /// follow.
    filename: usize,
    /// Position of `code_object.co_code_adaptive`; from 3.14 on `co_tlbc` follows.
    co_code_adaptive: usize,
    /// Position of the field `unicode_object.asciiobject_size`.
    asciiobject_size: usize,
}

const IN_3_13: DebugOffsetPositions = DebugOffsetPositions {
    finalizing: 32,
    current_frame: 184,
    previous: 232,
    owner: 264,
    filename: 280,
    co_code_adaptive: 344,
    asciiobject_size: 560,
};

const IN_3_14: DebugOffsetPositions = DebugOffsetPositions {
    finalizing: 32,
    current_frame: 208,
    previous: 256,
    owner: 288,
    filename: 320,
    co_code_adaptive: 384,
    asciiobject_size: 640,
};

/// Operations of 3.14, from `Include/opcode_ids.h`.
const MAKE_CELL: u8 = 97;
const COPY_FREE_VARS: u8 = 60;

/// Reads the self-description of 3.13 or 3.14.
pub(super) fn from_debug_offsets(version: u16, bytes: &[u8]) -> Result<PythonLayout, &'static str> {
    let word = |at: usize| -> Result<usize, &'static str> {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        Ok(u64::from_le_bytes(bytes.ok_or("its self-description is too short")?) as usize)
    };
    // None of these structs is larger than this.
    let offset = |at: usize| match word(at)? {
        value if value < 4096 => Ok(value),
        _ => Err("its self-description has an impossible offset"),
    };
    if bytes.get(..8) != Some(b"xdebugpy") {
        return Err("its self-description is missing");
    }
    if (word(8)? >> 16) as u16 != version {
        return Err("its self-description belongs to another version");
    }
    let is_threaded = word(16)? != 0;
    // From 3.14 on, the lowest bits of a reference in a frame are reference-counting flags.
    let (at, frame_code_tags) = if version == 0x030d { (IN_3_13, 0) } else { (IN_3_14, 3) };
    let ascii = offset(at.asciiobject_size)?;
    let bytecode = offset(at.co_code_adaptive)?;
    if bytecode < 136 {
        return Err("its self-description has an impossible offset");
    }
    let copies = if is_threaded && version != 0x030d {
        Some(BytecodeCopies {
            array: offset(at.co_code_adaptive + 8)?,
            prologue: [MAKE_CELL, COPY_FREE_VARS],
        })
    } else {
        None
    };
    let object = match (is_threaded, version) {
        (false, _) => OBJECT,
        (true, 0x030d) => OBJECT_FREE_THREADED,
        // From 3.14 on, `interned` is a separate byte.
        (true, _) => ObjectLayout { string_kind_bit: 8, ..OBJECT_FREE_THREADED },
    };
    let (previous, code, instr) = (offset(at.previous)?, offset(at.previous + 8)?, offset(at.previous + 16)?);
    Ok(PythonLayout {
        version,
        runtime_finalizing: offset(at.finalizing)?,
        tstate_frame: offset(at.current_frame)?,
        cframe_frame: None,
        frame_previous: previous,
        frame_code: code,
        frame_code_tags,
        frame_instr: instr,
        instruction: InstructionKind::Pointer,
        frame_windows: windows_over([previous, code, instr])
            .ok_or("its frames have their fields too far apart")?,
        frame_owner: offset(at.owner)?,
        frame_runs_any_object: true,
        owner_without_code: Some(3),
        frame_is_entry: None,
        object,
        code: CodeLayout {
            filename: offset(at.filename)?,
            name: offset(at.filename + 8)?,
            qualname: offset(at.filename + 16)?,
            line_table: offset(at.filename + 24)?,
            first_line: offset(at.filename + 32)?,
            // Not described. Unchanged since 3.12, and only compared, never followed.
            serial: Some(76 + object.ob_size),
            // As far before the bytecode as in 3.11 and 3.12, plus the copies.
            first_traceable: Some(bytecode - if copies.is_some() { 24 } else { 16 }),
            bytecode,
            copies,
        },
        ascii_data: ascii,
        // struct PyCompactUnicodeObject = PyASCIIObject + utf8_length + utf8
        compact_data: ascii + 16,
    })
}

#[cfg(test)]
mod tests {
    use super::super::of_version;
    use super::*;

    /// `_PyRuntime.debug_offsets` of an x86-64 release build, computed from the headers of 3.13.0
    /// and 3.14.10.
    fn described(version: u64) -> Vec<u8> {
        let mut bytes = vec![0u8; DEBUG_OFFSETS_BYTES];
        bytes[..8].copy_from_slice(b"xdebugpy");
        let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let (at, bytecode, finalizing) =
            if version == 0x030d { (IN_3_13, 200, 608) } else { (IN_3_14, 208, 656) };
        put(8, version << 16 | 0xf0);
        put(at.finalizing, finalizing);
        put(at.current_frame, 72);
        for (word, value) in [8, 0, 56].into_iter().enumerate() {
            put(at.previous + 8 * word, value);
        }
        put(at.owner, if version == 0x030d { 70 } else { 74 });
        for (word, value) in [112, 120, 128, 136, 68].into_iter().enumerate() {
            put(at.filename + 8 * word, value);
        }
        put(at.co_code_adaptive, bytecode);
        put(at.asciiobject_size, 40);
        bytes
    }

    #[test]
    fn self_description_is_read_and_validated() {
        let layout = of_version(0x030d, &described(0x030d)).unwrap();
        assert_eq!(layout.runtime_finalizing, 608);
        assert_eq!((layout.tstate_frame, layout.frame_owner, layout.code.bytecode), (72, 70, 200));
        assert_eq!((layout.ascii_data, layout.compact_data), (40, 56));
        let layout = of_version(0x030e, &described(0x030e)).unwrap();
        assert_eq!((layout.frame_owner, layout.code.bytecode, layout.frame_code_tags), (74, 208, 3));

        let mut threaded = described(0x030d);
        threaded[16] = 1;
        let layout = of_version(0x030d, &threaded).unwrap();
        assert_eq!((layout.object, layout.code.copies), (OBJECT_FREE_THREADED, None));
        assert_eq!((layout.code.serial, layout.code.first_traceable), (Some(108), Some(184)));
        let mut threaded = described(0x030e);
        threaded[16] = 1;
        threaded[IN_3_14.co_code_adaptive + 8] = 200;
        let layout = of_version(0x030e, &threaded).unwrap();
        assert_eq!(layout.code.copies.map(|copies| copies.array), Some(200));
        assert_eq!((layout.object.string_kind_bit, layout.code.first_traceable), (8, Some(184)));

        let mut garbage = described(0x030d);
        garbage[190] = 1;
        assert!(of_version(0x030d, &garbage).is_err());
        assert!(of_version(0x030d, &described(0x030d)[..100]).is_err());
        assert!(of_version(0x030d, &[0; DEBUG_OFFSETS_BYTES]).is_err());
        assert!(of_version(0x030e, &described(0x030d)).is_err(), "another version");
        assert!(of_version(0x0310, &described(0x030d)).is_err());
    }
}
