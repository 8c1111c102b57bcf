//! Marks for colour and alignment in a text before layout.
//!
//! The marks are noncharacters of Unicode, which untrusted text cannot contain after
//! [`super::escape::escape_text`].

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
