//! Distinguishes code objects at the same address in versions without serial numbers (before 3.12).
//!
//! Functions that are compiled, called and dropped in a loop get the same memory again and again,
//! and so do their names and line tables. So addresses do not identify them. This code runs for
//! every frame of every event, so it must be fast. The fingerprint covers the fields that a stack
//! shows, by content:
//!
//! - file name and name: the hash that the string stores, or samples of its characters if it has
//!   none yet (all characters up to 48 bytes);
//! - the line table: its length and both ends;
//! - the first line.

use super::layout::PythonLayout;
use super::text;
use crate::platform::process_memory::Memory;

/// Words that are sampled from a string without a hash.
const SAMPLES: usize = 6;

#[inline(always)]
#[allow(clippy::inline_always, reason = "before 3.12 part of the loop over all frames")]
pub(super) fn code_fingerprint<M: Memory>(memory: &M, layout: &PythonLayout, code: usize) -> Option<u64> {
    let table = memory.word(code + layout.code.line_table)?;
    let filename = memory.word(code + layout.code.filename)?;
    let qualname = memory.word(code + layout.code.qualname)?;
    let first_line = u64::from(memory.half(code + layout.code.first_line)?);
    let (begins, ends, len) = if table == 0 {
        (0, 0, 0)
    } else {
        let len = memory.word(table + layout.object.ob_size)?;
        let data = table + layout.object.bytes_data;
        // A bytes object ends in a NUL and its memory comes in steps of 16, so 8 bytes are readable
        // even if it is shorter.
        (memory.word(data)?, memory.word(data + len.saturating_sub(8))?, len)
    };
    // Independent rotations, so that the processor computes them in parallel.
    Some(
        string_hash(memory, layout, filename)?.rotate_left(16)
            ^ string_hash(memory, layout, qualname)?
            ^ (begins as u64).rotate_left(7)
            ^ (ends as u64).rotate_left(33).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (len as u64).rotate_left(24)
            ^ first_line << 48,
    )
}

/// Fingerprints of one capture, because deep stacks run few functions many times. No code object
/// that runs can change during a capture.
#[derive(Default)]
pub(crate) struct RecentFingerprints([(usize, u64); RECENT]);

const RECENT: usize = 8;

impl RecentFingerprints {
    /// The fingerprint of the code object at this address.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    pub(super) fn get<M: Memory>(&mut self, memory: &M, layout: &PythonLayout, code: usize) -> Option<u64> {
        let entry = &mut self.0[(code >> 6 ^ code >> 9) % RECENT];
        if entry.0 != code {
            *entry = (code, code_fingerprint(memory, layout, code)?);
        }
        Some(entry.1)
    }
}

/// A number for the content of a string: its hash if it has one, else a hash of samples.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as above")]
fn string_hash<M: Memory>(memory: &M, layout: &PythonLayout, string: usize) -> Option<u64> {
    if string == 0 {
        return Some(0);
    }
    match memory.word(string + layout.object.string_hash)? {
        usize::MAX => sample_string(memory, layout, string),
        hash => Some(hash as u64),
    }
}

fn sample_string<M: Memory>(memory: &M, layout: &PythonLayout, string: usize) -> Option<u64> {
    let Some((width, ascii)) =
        text::char_width(memory.half(string + layout.object.string_state)?, layout.object.string_kind_bit)
    else {
        // Perhaps a subclass, which has its characters elsewhere.
        return Some(string as u64);
    };
    let bytes = memory.word(string + layout.object.ob_size)?.checked_mul(width)?;
    let data = string + if ascii { layout.ascii_data } else { layout.compact_data };
    // Memory comes in steps of 16, so 8 bytes are readable even if the string is shorter.
    let last = bytes.saturating_sub(8);
    let mut hash = bytes as u64;
    for sample in 0..SAMPLES {
        let word = memory.word(data + last * sample / (SAMPLES - 1))? as u64;
        hash = (hash.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::super::fake_interpreter::{STRINGS, python};
    use super::*;

    const CODE: usize = 0x500_0000;

    #[test]
    fn every_character_of_a_name_changes_the_fingerprint() {
        for version in [0x030a, 0x030b] {
            let (mut fake, layout) = python(version, 1);
            let mut seen = std::collections::HashSet::new();
            let name = "a_function_whose_name_is_of_some_length_";
            for at in 0..name.len() {
                let mut other = name.to_owned();
                other.replace_range(at..=at, "9");
                fake.put_string(&layout, STRINGS, &other);
                assert!(seen.insert(code_fingerprint(&fake, &layout, CODE).unwrap()), "{other}");
            }
            for short in ["", "a", "b", "ab", "größe", "長い名前"] {
                fake.put_string(&layout, STRINGS, short);
                assert!(seen.insert(code_fingerprint(&fake, &layout, CODE).unwrap()), "{short}");
            }
        }
    }

    #[test]
    fn characters_are_not_read_if_the_string_has_a_hash() {
        let (mut fake, layout) = python(0x030a, 1);
        fake.put_string(&layout, STRINGS, "name");
        fake.put(STRINGS + layout.object.string_hash, 0x1234);
        let before = code_fingerprint(&fake, &layout, CODE);
        for at in 0..8 {
            fake.0.remove(&(STRINGS + layout.ascii_data + at));
        }
        assert_eq!(code_fingerprint(&fake, &layout, CODE), before);
        fake.put(STRINGS + layout.object.string_hash, 0x1235);
        assert_ne!(code_fingerprint(&fake, &layout, CODE), before);
    }

    #[test]
    fn code_without_names_or_compact_strings_has_a_fingerprint() {
        let (mut fake, layout) = python(0x030c, 1);
        fake.put(CODE + layout.code.filename, 0);
        fake.put(CODE + layout.code.line_table, 0);
        assert!(code_fingerprint(&fake, &layout, CODE).is_some());
        fake.put(STRINGS + layout.object.string_state, 0);
        assert!(code_fingerprint(&fake, &layout, CODE).is_some());
    }
}
