//! Copying a code object, once, while a frame keeps it alive.
//!
//! Constraint: lines are resolved at replay, long after the code object is gone, and the hook may not allocate. Consequence:
//! file name, qualified name and the undecoded line table are copied into a fixed buffer, ready to be cut into ring
//! records. Longer ones are cut and marked; nothing is believed before its type was checked.

use gpumemtrace_format::NOT_BEGUN;

use super::layout::{InstructionKind, PythonLayout};
use super::text;
use crate::platform::process_memory::Memory;

const MAX_FILE_BYTES: usize = 4096;
const MAX_NAME_BYTES: usize = 1024;
const MAX_TABLE_BYTES: usize = 64 << 10;
/// Lengths in front of the three fields, see `gpumemtrace_format::ring`.
const LENGTHS_BYTES: usize = 12;

/// Copies of bytecode, of as many threads, that are looked at.
const MOST_COPIES: usize = 1 << 16;

/// Bytes in a code unit, in all versions.
const CODE_UNIT_BYTES: usize = 2;

/// Room for the largest definition.
pub(crate) const SCRATCH_BYTES: usize = LENGTHS_BYTES + MAX_FILE_BYTES + MAX_NAME_BYTES + MAX_TABLE_BYTES;

/// Addresses of the types that fields must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TypeAddresses {
    /// `PyCode_Type`.
    pub code: usize,
    /// `PyUnicode_Type`.
    pub string: usize,
    /// `PyBytes_Type`.
    pub bytes: usize,
    /// `PyFrame_Type`, which frames have before 3.11.
    pub frame: usize,
}

/// What was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopiedCode {
    /// Bytes used in the scratch buffer: lengths, file, name, table.
    pub len: usize,
    /// `co_firstlineno`.
    pub first_line: i32,
    /// True when a field was longer than its limit.
    pub truncated: bool,
}

/// Copies the code object at `code`; `None` if it is not what it should be.
pub(crate) fn copy_code<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    types: &TypeAddresses,
    code: usize,
    scratch: &mut [u8; SCRATCH_BYTES],
) -> Option<CopiedCode> {
    if memory.word(code + layout.object.ob_type)? != types.code {
        return None;
    }
    let first_line = memory.half(code + layout.code.first_line)? as i32;
    let mut end = LENGTHS_BYTES;
    let mut truncated = false;
    for (slot, at, limit) in
        [(0, layout.code.filename, MAX_FILE_BYTES), (4, layout.code.qualname, MAX_NAME_BYTES)]
    {
        let string = memory.word(code + at)?;
        let (len, whole) = copy_string(memory, layout, types, string, &mut scratch[end..end + limit])?;
        scratch[slot..slot + 4].copy_from_slice(&(len as u32).to_le_bytes());
        end += len;
        truncated |= !whole;
    }
    let table = memory.word(code + layout.code.line_table)?;
    if table == 0 || memory.word(table + layout.object.ob_type)? != types.bytes {
        return None;
    }
    let stored = memory.word(table + layout.object.ob_size)?;
    let len = stored.min(MAX_TABLE_BYTES);
    memory.read(table + layout.object.bytes_data, &mut scratch[end..end + len])?;
    scratch[8..12].copy_from_slice(&(len as u32).to_le_bytes());
    Some(CopiedCode { len: end + len, first_line, truncated: truncated || len < stored })
}

/// Copies a string as UTF-8; returns its length and whether it is whole. A missing name (null) is empty.
fn copy_string<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    types: &TypeAddresses,
    string: usize,
    out: &mut [u8],
) -> Option<(usize, bool)> {
    if string == 0 {
        return Some((0, true));
    }
    if memory.word(string + layout.object.ob_type)? != types.string {
        return None;
    }
    let (width, ascii) =
        text::char_width(memory.half(string + layout.object.string_state)?, layout.object.string_kind_bit)?;
    let data = string + if ascii { layout.ascii_data } else { layout.compact_data };
    let bytes = memory.word(string + layout.object.ob_size)?.checked_mul(width)?;
    let mut len = 0;
    let mut chunk = [0u8; 256];
    let mut from = 0;
    while from < bytes {
        let stored = &mut chunk[..(bytes - from).min(256)];
        memory.read(data + from, stored)?;
        let (encoded, whole) = text::encode_utf8(stored, width, &mut out[len..]);
        len += encoded;
        if !whole {
            return Some((len, false));
        }
        from += stored.len();
    }
    Some((len, true))
}

/// Where the thread's copy of the bytecode begins, in builds that have one for each thread.
fn copy_of<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    code: usize,
    instr: usize,
    bytes: usize,
) -> Option<usize> {
    let array = memory.word(code + layout.code.copies?.array)?;
    let count = memory.word(array)?.min(MOST_COPIES);
    let mut chunk = [0; 512];
    for from in (0..count).step_by(chunk.len() / 8) {
        let entries = &mut chunk[..8 * (count - from).min(64)];
        memory.read(array + 8 + 8 * from, entries)?;
        let mut starts = entries.as_chunks::<8>().0.iter().map(|entry| u64::from_le_bytes(*entry) as usize);
        if let Some(start) = starts.find(|start| *start != 0 && instr.wrapping_sub(*start) < bytes) {
            return Some(start);
        }
    }
    None
}

/// Offset of an instruction in the bytecode of its code object, in bytes; [`NOT_BEGUN`] right before the first one; -1 if it
/// lies anywhere else.
pub(crate) fn offset_in_code<M: Memory>(memory: &M, layout: &PythonLayout, code: usize, instr: usize) -> i32 {
    let (offset, bytes) = match layout.instruction {
        InstructionKind::Pointer => {
            let bytes =
                memory.word(code + layout.object.ob_size).unwrap_or(0).saturating_mul(CODE_UNIT_BYTES);
            let start = copy_of(memory, layout, code, instr, bytes).unwrap_or(code + layout.code.bytecode);
            (instr.wrapping_sub(start) as isize, bytes)
        }
        InstructionKind::Index { unit } => {
            let bytecode = memory.word(code + layout.code.bytecode);
            let bytes = bytecode.and_then(|bytecode| memory.word(bytecode + layout.object.ob_size));
            // A number of 32 bits with a sign.
            let offset = match instr as u32 as i32 {
                -1 => -(CODE_UNIT_BYTES as isize),
                index => index as isize * unit as isize,
            };
            (offset, bytes.unwrap_or(0))
        }
    };
    match usize::try_from(offset) {
        Ok(inside) if inside < bytes => i32::try_from(inside).unwrap_or(-1),
        Err(_) if offset == -(CODE_UNIT_BYTES as isize) => NOT_BEGUN,
        _ => -1,
    }
}
