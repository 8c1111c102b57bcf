//! Copies a code object once, while a frame keeps it alive.
//!
//! Line numbers are resolved at replay, long after the code object is gone, and the hook may not
//! allocate. So file name, qualified name and the undecoded line table are copied into a fixed
//! buffer, ready to be split into ring records. Longer fields are truncated and marked. The type of
//! each object is checked before anything in it is used.

use gpumemtrace_format::FRAME_NOT_STARTED;

use super::layout::{InstructionKind, PythonLayout};
use super::text;
use crate::platform::process_memory::Memory;

const MAX_FILE_BYTES: usize = 4096;
const MAX_NAME_BYTES: usize = 1024;
const MAX_TABLE_BYTES: usize = 64 << 10;
/// The lengths in front of the three fields, see `gpumemtrace_format::ring`.
const LENGTHS_BYTES: usize = 12;

/// Limit for the number of bytecode copies that are searched; each thread has one.
const MAX_COPIES: usize = 1 << 16;

/// Size of a code unit, in all versions.
const CODE_UNIT_BYTES: usize = 2;

/// Size of the buffer for the largest definition.
pub(crate) const SCRATCH_BYTES: usize = LENGTHS_BYTES + MAX_FILE_BYTES + MAX_NAME_BYTES + MAX_TABLE_BYTES;

/// Addresses of the interpreter's type objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TypeAddresses {
    /// Address of `PyCode_Type`, the type of code objects.
    pub code: usize,
    /// Address of `PyUnicode_Type`, the type of strings.
    pub string: usize,
    /// Address of `PyBytes_Type`, the type of line tables.
    pub bytes: usize,
    /// Address of `PyFrame_Type`, the type of frames before 3.11.
    pub frame: usize,
}

/// A code object that was copied into a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopiedCode {
    /// Bytes used in the buffer: lengths, file name, name, line table.
    pub len: usize,
    /// `co_firstlineno` of the code object.
    pub first_line: i32,
    /// True if a field was longer than its limit.
    pub is_truncated: bool,
}

/// Copies the code object at `code`. Returns `None` if a field cannot be read or has the wrong
/// type.
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
    let mut is_truncated = false;
    for (slot, at, limit) in
        [(0, layout.code.filename, MAX_FILE_BYTES), (4, layout.code.qualname, MAX_NAME_BYTES)]
    {
        let string = memory.word(code + at)?;
        let (len, whole) = copy_string(memory, layout, types, string, &mut scratch[end..end + limit])?;
        scratch[slot..slot + 4].copy_from_slice(&(len as u32).to_le_bytes());
        end += len;
        is_truncated |= !whole;
    }
    let table = memory.word(code + layout.code.line_table)?;
    if table == 0 || memory.word(table + layout.object.ob_type)? != types.bytes {
        return None;
    }
    let stored = memory.word(table + layout.object.ob_size)?;
    let len = stored.min(MAX_TABLE_BYTES);
    memory.read(table + layout.object.bytes_data, &mut scratch[end..end + len])?;
    scratch[8..12].copy_from_slice(&(len as u32).to_le_bytes());
    Some(CopiedCode { len: end + len, first_line, is_truncated: is_truncated || len < stored })
}

/// Copies a string as UTF-8. Returns its length in bytes, and whether all of it fit. A null name is
/// empty.
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

/// The start of the bytecode copy that contains `instr`, in builds that have a copy for each
/// thread.
fn bytecode_copy_start<M: Memory>(
    memory: &M,
    layout: &PythonLayout,
    code: usize,
    instr: usize,
    bytes: usize,
) -> Option<usize> {
    let array = memory.word(code + layout.code.copies?.array)?;
    let count = memory.word(array)?.min(MAX_COPIES);
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

/// The byte offset of an instruction in the bytecode of its code object: [`FRAME_NOT_STARTED`]
/// right before the first instruction, -1 for an instruction outside of the bytecode.
pub(crate) fn offset_in_code<M: Memory>(memory: &M, layout: &PythonLayout, code: usize, instr: usize) -> i32 {
    let (offset, bytes) = match layout.instruction {
        InstructionKind::Pointer => {
            let bytes =
                memory.word(code + layout.object.ob_size).unwrap_or(0).saturating_mul(CODE_UNIT_BYTES);
            let start = bytecode_copy_start(memory, layout, code, instr, bytes)
                .unwrap_or(code + layout.code.bytecode);
            (instr.wrapping_sub(start) as isize, bytes)
        }
        InstructionKind::Index => {
            let bytecode = memory.word(code + layout.code.bytecode);
            let bytes = bytecode.and_then(|bytecode| memory.word(bytecode + layout.object.ob_size));
            // A signed 32-bit number.
            let offset = match instr as u32 as i32 {
                -1 => -(CODE_UNIT_BYTES as isize),
                index => index as isize * CODE_UNIT_BYTES as isize,
            };
            (offset, bytes.unwrap_or(0))
        }
    };
    match usize::try_from(offset) {
        Ok(inside) if inside < bytes => i32::try_from(inside).unwrap_or(-1),
        Err(_) if offset == -(CODE_UNIT_BYTES as isize) => FRAME_NOT_STARTED,
        _ => -1,
    }
}
