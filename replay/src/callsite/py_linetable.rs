//! From a position in bytecode to a line: CPython's line tables.
//!
//! Constraint: the recorder copies the table undecoded and the file may be damaged or hostile. Consequence: three pure
//! decoders over a byte slice that stop at its end, never panic, and answer "unknown" rather than a guess.
//!
//! | python | table | one entry |
//! |---|---|---|
//! | 3.11+ | `co_linetable` | `0x80 \| form << 3 \| units - 1`, then what the form says |
//! | 3.10 | `co_linetable` | bytes of code (u8), line difference (i8, -128: no line) |
//! | older | `co_lnotab` | bytes of code (u8), line difference (i8), applied *after* them |

use gpumemtrace_format::{CodeDef, FRAME_NOT_STARTED};

/// First version with the location table of PEP 657.
const PYTHON_3_11: u16 = 0x030b;
/// The one version with the table of PEP 626.
const PYTHON_3_10: u16 = 0x030a;
/// Bytes in a code unit since 3.6.
const UNIT_BYTES: u64 = 2;

/// The line of the instruction at `offset_bytes` in a code object; `None` when the table does not say.
///
/// A frame that has not begun is at the first line; any other negative offset means that the recorder did not know the
/// instruction. In a truncated table only what is there is used.
pub fn line_at(code: &CodeDef, offset_bytes: i32) -> Option<u32> {
    if offset_bytes == FRAME_NOT_STARTED {
        return u32::try_from(code.first_line).ok().filter(|line| *line > 0);
    }
    let offset = u64::try_from(offset_bytes).ok()?;
    let first = i64::from(code.first_line);
    let line = match code.python {
        0 => None,
        version if version >= PYTHON_3_11 => location_table(&code.line_table, first, offset),
        PYTHON_3_10 => line_table_3_10(&code.line_table, first, offset),
        _ => lnotab(&code.line_table, first, offset, code.truncated),
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

/// Six bits a byte, lowest first; bit 6 says that more follow.
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

/// The sign is the lowest bit.
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

fn lnotab(table: &[u8], first_line: i64, offset: u64, truncated: bool) -> Option<i64> {
    let (mut line, mut begin) = (first_line, 0u64);
    for entry in table.chunks_exact(2) {
        begin += u64::from(entry[0]);
        if begin > offset {
            return Some(line);
        }
        line += i64::from(entry[1] as i8);
    }
    // The table has no end mark: past its last entry every instruction is on the last line, if the table is whole.
    (!truncated).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(python: u16, first_line: i32, line_table: Vec<u8>) -> CodeDef {
        CodeDef { python, first_line, line_table, ..CodeDef::default() }
    }

    #[test]
    fn each_form_of_the_location_table_is_read() {
        // Short form 2 units; one-line +1, 1 unit; no columns -1, 1 unit; long +2, 1 unit; none, 1 unit.
        let table = vec![0x81, 0, 0xd8, 1, 2, 0xe8, 3, 0xf0, 4, 0, 1, 1, 0xf8];
        let code = code(0x030b, 10, table);
        let lines: Vec<Option<u32>> = (0..14).step_by(2).map(|offset| line_at(&code, offset)).collect();
        assert_eq!(lines, [Some(10), Some(10), Some(11), Some(10), Some(12), None, None]);
        assert_eq!((line_at(&code, -1), line_at(&code, FRAME_NOT_STARTED)), (None, Some(10)));
    }

    #[test]
    fn a_table_of_an_unknown_version_says_nothing() {
        assert_eq!(line_at(&code(0, 10, vec![0x80, 0]), 0), None);
    }

    proptest! {
        #[test]
        fn any_table_is_read_without_panic(
            python in prop_oneof![Just(0x0309u16), Just(0x030a), Just(0x030b), Just(0x030e), any::<u16>()],
            first_line: i32, table: Vec<u8>, offset: i32, truncated: bool,
        ) {
            let mut code = code(python, first_line, table);
            code.truncated = truncated;
            let _ = line_at(&code, offset);
        }
    }
}
