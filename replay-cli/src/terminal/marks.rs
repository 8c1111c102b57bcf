//! Marks in a text that is not laid out yet, and which characters of foreign text may stay in it.
//!
//! The marks are noncharacters of Unicode, which no text may hold.

/// From here on text stands out.
pub(crate) const BOLD: char = '\u{fdd0}';
/// From here on it warns.
pub(crate) const WARN: char = '\u{fdd1}';
/// From here on it steps back.
pub(crate) const DIM: char = '\u{fdd2}';
/// From here on it is as usual.
pub(crate) const PLAIN: char = '\u{fdd3}';
/// A row goes on under this place; its paths are shortened before that.
pub(crate) const HANG: char = '\u{fdd4}';

pub(super) fn is_mark(c: char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(&c)
}

/// What must not reach a terminal: control characters, what turns the direction of text around, breaks of lines, our own marks.
pub(super) fn is_harmful(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// What comes from a file, with a space for each character that must not reach a terminal.
pub(crate) fn sanitize(text: &str) -> String {
    text.chars().map(|c| if is_harmful(c) || is_mark(c) { ' ' } else { c }).collect()
}
