//! Converts CPython's strings to UTF-8 without calling CPython.
//!
//! `PyUnicode_AsUTF8` allocates and caches, so the hook may not call it. Instead the characters are
//! read in place (1, 2 or 4 bytes each) and encoded into a buffer of the caller. Text that does not
//! fit is truncated at a character. A lone surrogate (from a file name that is not UTF-8) becomes
//! U+FFFD.

/// Decodes the `state` word of a string into the width of a character in bytes, and whether it is
/// ASCII.
///
/// The bits from `kind_bit` on are: kind (3), compact (1), ascii (1). Returns `None` for strings
/// that are not compact, and for builds that have these bits elsewhere.
pub(crate) fn char_width(state: u32, kind_bit: u32) -> Option<(usize, bool)> {
    let state = state >> kind_bit;
    let (kind, compact, ascii) = (state & 7, state >> 3 & 1, state >> 4 & 1);
    match (kind, compact) {
        (1 | 2 | 4, 1) => Some((kind as usize, ascii == 1)),
        _ => None,
    }
}

/// Encodes characters of `width` bytes each. Returns the bytes written, and whether all of them
/// fit.
pub(crate) fn encode_utf8(stored: &[u8], width: usize, out: &mut [u8]) -> (usize, bool) {
    let mut len = 0;
    for bytes in stored.chunks_exact(width) {
        let code = bytes.iter().rev().fold(0u32, |code, byte| code << 8 | u32::from(*byte));
        let mut encoded = [0; 4];
        let encoded = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut encoded);
        let Some(place) = out.get_mut(len..len + encoded.len()) else {
            return (len, false);
        };
        place.copy_from_slice(encoded.as_bytes());
        len += encoded.len();
    }
    (len, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(stored: &[u8], width: usize, capacity: usize) -> (String, bool) {
        let mut out = vec![0; capacity];
        let (len, is_whole) = encode_utf8(stored, width, &mut out);
        (String::from_utf8(out[..len].to_vec()).unwrap(), is_whole)
    }

    proptest! {
        #[test]
        fn every_width_gives_the_text_back(text in ".{0,40}") {
            let wide: Vec<u8> = text.chars().flat_map(|c| (c as u32).to_le_bytes()).collect();
            prop_assert_eq!(encode(&wide, 4, 400), (text.clone(), true));
            if text.chars().all(|c| (c as u32) < 0x1_0000) {
                let two: Vec<u8> = text.chars().flat_map(|c| (c as u16).to_le_bytes()).collect();
                prop_assert_eq!(encode(&two, 2, 400), (text.clone(), true));
            }
            let latin: String = text.chars().filter(|c| (*c as u32) < 256).collect();
            let one: Vec<u8> = latin.chars().map(|c| c as u8).collect();
            prop_assert_eq!(encode(&one, 1, 400), (latin, true));
        }

        #[test]
        fn long_text_is_truncated_at_a_character(text in ".{0,40}", capacity in 0usize..60) {
            let wide: Vec<u8> = text.chars().flat_map(|c| (c as u32).to_le_bytes()).collect();
            let (cut, is_whole) = encode(&wide, 4, capacity);
            prop_assert!(text.starts_with(&cut));
            prop_assert_eq!(is_whole, cut.len() == text.len());
        }
    }

    #[test]
    fn lone_surrogate_is_replaced() {
        assert_eq!(encode(&0xdc80u16.to_le_bytes(), 2, 9), ("\u{fffd}".to_owned(), true));
    }

    #[test]
    fn only_compact_strings_are_accepted() {
        assert_eq!(char_width(1 << 2 | 1 << 5 | 1 << 6, 2), Some((1, true)));
        assert_eq!(char_width(2 << 2 | 1 << 5, 2), Some((2, false)));
        assert_eq!(char_width(1 << 2, 2), None);
        assert_eq!(char_width(3 << 2 | 1 << 5, 2), None);
    }
}
