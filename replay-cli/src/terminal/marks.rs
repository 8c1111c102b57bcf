//! Marks for colour and alignment in a text before layout, and a filter for untrusted text.
//!
//! The marks are noncharacters of Unicode, which untrusted text cannot contain after [`sanitize`].

/// Starts text in bold.
pub(crate) const BOLD: char = '\u{fdd0}';
/// Starts text in the colour of warnings.
pub(crate) const WARN: char = '\u{fdd1}';
/// Starts text in a dim colour.
pub(crate) const DIM: char = '\u{fdd2}';
/// Ends bold, dim or coloured text.
pub(crate) const PLAIN: char = '\u{fdd3}';
/// The column under which a wrapped row continues. Its paths are shortened before it wraps.
pub(crate) const HANG: char = '\u{fdd4}';

pub(super) fn is_mark(c: char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(&c)
}

/// True for characters that must not reach a terminal: control characters, changes of the text
/// direction, line breaks.
pub(super) fn is_harmful(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Untrusted text with a space for each harmful character and each mark.
pub(crate) fn sanitize(text: &str) -> String {
    text.chars().map(|c| if is_harmful(c) || is_mark(c) { ' ' } else { c }).collect()
}
