//! The one function through which all text from outside passes before the command prints it.
//!
//! Names in a trace, paths and arguments may hold anything: escape sequences that move the cursor,
//! marks that turn the direction of the text, characters that no terminal shows. Each of them is
//! replaced by an escape such as `\u{1b}`. Escaped text stays as it is when it is escaped again. So
//! code that knows a text to be a name escapes it there. The writers of [`super::stdout`] and
//! [`super::stderr`] escape all output once more.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

pub(crate) use gpumemtrace_format::text::needs_escape;

/// The text with an escape in place of each character for which [`needs_escape`] holds.
pub(crate) fn escape_text(text: &str) -> String {
    escape_except(text, |_| false).into_owned()
}

/// The text for the content or an attribute of an element of HTML or SVG. Control characters stay.
pub(crate) fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(char),
        }
    }
    escaped
}

/// A path with the escapes of [`escape_text`].
pub(crate) fn escape_path(path: &Path) -> String {
    escape_text(&path.to_string_lossy())
}

/// Like [`escape_text`], but leaves the characters that `is_kept` names.
pub(super) fn escape_except(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_written_out = |c: char| needs_escape(c) && !is_kept(c);
    if !text.contains(is_written_out) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_written_out(c) { push_escaped(&mut escaped, c) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

fn push_escaped(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c => drop(write!(out, "\\u{{{:x}}}", u32::from(c))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads `\u{…}`, `\n`, `\r` and `\t` back.
    fn unescape(text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('\\') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let (c, len) = match rest.as_bytes()[0] {
                b'n' => ('\n', 1),
                b'r' => ('\r', 1),
                b't' => ('\t', 1),
                _ => {
                    let end = rest.find('}').unwrap();
                    (char::from_u32(u32::from_str_radix(&rest[2..end], 16).unwrap()).unwrap(), end + 1)
                }
            };
            out.push(c);
            rest = &rest[len..];
        }
        out + rest
    }

    #[test]
    fn escapes_are_written_out() {
        assert_eq!(escape_text("a\x1b[31mb\u{9b}2J\r\n\tc"), "a\\u{1b}[31mb\\u{9b}2J\\r\\n\\tc");
        assert_eq!(
            escape_text("x\u{202e}y\u{2066}\u{200f}\u{61c}\u{7f}"),
            "x\\u{202e}y\\u{2066}\\u{200f}\\u{61c}\\u{7f}"
        );
        assert_eq!(escape_text("é 字 C:\\new"), "é 字 C:\\new");
    }

    proptest! {
        #[test]
        fn escaped_text_is_harmless_stable_and_readable(text in any::<String>(), ascii in "[ -~]*") {
            let escaped = escape_text(&text);
            prop_assert!(!escaped.contains(needs_escape));
            prop_assert_eq!(&escape_text(&escaped), &escaped);
            prop_assert_eq!(escape_text(&ascii), ascii);
            // Only a text that holds a backslash itself may look like an escaped one.
            if !text.contains('\\') {
                prop_assert_eq!(unescape(&escaped), text);
            }
        }
    }
}
