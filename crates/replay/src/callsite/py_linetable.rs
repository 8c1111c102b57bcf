//! Decodes CPython's line tables: from a bytecode offset to a line number.
//!
//! The recorder copies the tables undecoded, and the file may be damaged or hostile. Both decoders
//! read a byte slice, stop at its end, never panic, and return `None` rather than a guess.
//! `crates/replay/tests/python_lines.rs` compares them with each interpreter's `PyCode_Addr2Line`.
//!
//! | python | table | one entry |
//! |---|---|---|
//! | 3.11+ | `co_linetable` | `0x80 \| form << 3 \| units - 1`, then bytes by form |
//! | 3.10 | `co_linetable` | bytes of code (u8), line difference (i8, -128: no line) |

use gpumemtrace_format::{CodeDef, FRAME_NOT_STARTED};

/// First version with the location table of PEP 657.
const PYTHON_3_11: u16 = 0x030b;
/// The only version with the table of PEP 626.
const PYTHON_3_10: u16 = 0x030a;
/// Bytes in a code unit since 3.6.
const UNIT_BYTES: u64 = 2;

/// The line of the instruction at `offset_bytes` in a code object; `None` if the table has none.
///
/// A frame that has not begun ([`FRAME_NOT_STARTED`]) is at the first line. Any other negative
/// offset means that the recorder did not know the instruction. Lines past the end of a truncated
/// table are unknown.
pub fn line_at(code: &CodeDef, offset_bytes: i32) -> Option<u32> {
    if offset_bytes == FRAME_NOT_STARTED {
        return u32::try_from(code.first_line).ok().filter(|line| *line > 0);
    }
    let offset = u64::try_from(offset_bytes).ok()?;
    let first = i64::from(code.first_line);
    let line = match code.python {
        version if version >= PYTHON_3_11 => location_table(&code.line_table, first, offset),
        PYTHON_3_10 => line_table_3_10(&code.line_table, first, offset),
        _ => None,
    };
    line.and_then(|line| u32::try_from(line).ok()).filter(|line| *line > 0)
}

fn location_table(table: &[u8], first_line: i64, offset: u64) -> Option<i64> {
    let mut bytes = table.iter().copied();
    let (mut line, mut begin) = (first_line, 0u64);
    while let Some(head) = bytes.next() {
        let units = u64::from(head & 7) + 1;
        let form = head >> 3 & 15;
        let mut has_line = true;
        match form {
            0..=9 => {
                bytes.next()?;
            }
            10..=12 => {
                line = line.checked_add(i64::from(form - 10))?;
                bytes.next()?;
                bytes.next()?;
            }
            13 => line = line.checked_add(signed_varint(&mut bytes)?)?,
            14 => {
                line = line.checked_add(signed_varint(&mut bytes)?)?;
                for _ in 0..3 {
                    varint(&mut bytes)?;
                }
            }
            _ => has_line = false,
        }
        let end = begin + units * UNIT_BYTES;
        if (begin..end).contains(&offset) {
            return has_line.then_some(line);
        }
        begin = end;
    }
    None
}

/// Reads an unsigned integer of six bits per byte, lowest first. Bit 6 is set if more bytes follow.
fn varint(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..60).step_by(6) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
    None
}

/// Reads a signed integer with the sign in the lowest bit.
fn signed_varint(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let folded = varint(bytes)?;
    let magnitude = (folded >> 1) as i64;
    Some(if folded & 1 == 1 { -magnitude } else { magnitude })
}

fn line_table_3_10(table: &[u8], first_line: i64, offset: u64) -> Option<i64> {
    let (mut line, mut begin) = (first_line, 0u64);
    for entry in table.chunks_exact(2) {
        let difference = entry[1] as i8;
        let has_line = difference != -128;
        if has_line {
            line += i64::from(difference);
        }
        let end = begin + u64::from(entry[0]);
        if (begin..end).contains(&offset) {
            return has_line.then_some(line);
        }
        begin = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(python: u16, first_line: i32, line_table: Vec<u8>) -> CodeDef {
        CodeDef { python, first_line, line_table, ..CodeDef::default() }
    }

    #[test]
    fn each_form_of_the_location_table_is_decoded() {
        // Short form, 2 units; then 1 unit each: one-line +1, no columns -1, long +2, no line.
        let table = vec![0x81, 0, 0xd8, 1, 2, 0xe8, 3, 0xf0, 4, 0, 1, 1, 0xf8];
        let code = code(0x030b, 10, table);
        let lines: Vec<Option<u32>> = (0..14).step_by(2).map(|offset| line_at(&code, offset)).collect();
        assert_eq!(lines, [Some(10), Some(10), Some(11), Some(10), Some(12), None, None]);
        assert_eq!((line_at(&code, -1), line_at(&code, FRAME_NOT_STARTED)), (None, Some(10)));
    }

    #[test]
    fn table_of_an_unknown_version_has_no_lines() {
        assert_eq!(line_at(&code(0, 10, vec![0x80, 0]), 0), None);
    }

    proptest! {
        #[test]
        fn arbitrary_tables_are_decoded_without_panic(
            python in prop_oneof![Just(0x030au16), Just(0x030b), Just(0x030e), any::<u16>()],
            first_line: i32, table: Vec<u8>, offset: i32, truncated: bool,
        ) {
            let mut code = code(python, first_line, table);
            code.truncated = truncated;
            let _ = line_at(&code, offset);
        }
    }
}
