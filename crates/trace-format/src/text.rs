//! Which characters of names and paths must not reach a terminal as they are.

use std::ops::RangeInclusive;

/// Changes of the text direction, line and paragraph separators, everything with Unicode's property
/// Default_Ignorable_Code_Point, and noncharacters but the last two of each plane.
const UNSEEN: [RangeInclusive<char>; 18] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{61c}'..='\u{61c}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{fdd0}'..='\u{fdef}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

/// True for characters that output shows as an escape such as `\u{1b}`: controls, and all that a
/// terminal or browser does not show as themselves.
pub fn needs_escape(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    let is_last_of_plane = u32::from(c) & 0xfffe == 0xfffe;
    c.is_control() || is_last_of_plane || UNSEEN.iter().any(|range| range.contains(&c))
}

#[cfg(test)]
mod tests {
    use super::needs_escape;

    /// Controls, and what Unicode's `DerivedCoreProperties.txt` lists as bidi controls or
    /// ignorable.
    #[test]
    fn every_dangerous_range_is_covered() {
        for range in [
            0..=0x1f,
            0x7f..=0x9f,
            0xad..=0xad,
            0x61c..=0x61c,
            0x180b..=0x180f,
            0x200b..=0x200f,
            0x2028..=0x202e,
            0x2060..=0x206f,
            0xfdd0..=0xfdef,
            0xfe00..=0xfe0f,
            0xfeff..=0xfeff,
            0xfff9..=0xfffb,
            0xfffe..=0xffff,
            0x1_fffe..=0x1_ffff,
            0xe_0000..=0xe_0fff,
            0x10_fffe..=0x10_ffff,
        ] {
            for c in range.filter_map(char::from_u32) {
                assert!(needs_escape(c), "{c:?}");
            }
        }
        assert!(!"a~ é字\u{a0}".contains(needs_escape));
    }
}
