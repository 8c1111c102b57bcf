//! Where the value of a secret name begins and ends.

use std::ops::Range;

use super::{end_of_run, skip_spaces};

/// Characters that end a word.
const WORD_ENDS: &[u8] = b"&,;\"')]}<|";

/// The value that belongs to the secret name at `name`, if one follows. `is_first` for a name at
/// the begin of the text, `is_script` for the text of a program.
pub(super) fn value_after(
    bytes: &[u8],
    name: Range<usize>,
    (is_first, is_script): (bool, bool),
) -> Option<Range<usize>> {
    let before = name.start.checked_sub(1).map(|index| bytes[index]);
    let mut at = name.end;
    // `environ["TOKEN"] = `, `{"token": `, and the latter inside a string.
    at += usize::from(bytes[at..].starts_with(b"\\\"") || bytes[at..].starts_with(b"\\'"));
    at += usize::from(matches!(bytes.get(at), Some(b'"' | b'\'')));
    at += usize::from(matches!(bytes.get(at), Some(b']' | b')')));
    let is_quoted_name = at > name.end;
    let separator = skip_spaces(bytes, at);
    let is_spaced = separator > at;
    match bytes.get(separator)? {
        b'=' if is_first && !is_script && separator == name.end => Some(separator + 1..bytes.len()),
        b'=' => {
            let begin = end_of_run(bytes, separator, |byte| byte == b'=');
            let next = skip_spaces(bytes, begin);
            // After spaces, a shell has the next command, and Python has the value.
            let is_python = is_spaced || is_quoted_name || matches!(bytes.get(next), Some(b'"' | b'\''));
            Some(value_at(bytes, if is_python { next } else { begin }))
        }
        b':' if is_spaced && !is_quoted_name => None,
        b':' => {
            let begin = skip_spaces(bytes, separator + 1);
            match before {
                _ if is_quoted_name => Some(value_at(bytes, begin)),
                // A header of HTTP: `X-Api-Key: value`.
                Some(quote @ (b'"' | b'\'')) => Some(begin..end_of_run(bytes, begin, |byte| byte != quote)),
                // YAML, and Python's `token: str = "value"`.
                _ if begin > separator + 1 => Some(begin..end_of_run(bytes, begin, |byte| byte != b'\n')),
                Some(b'=') | None => Some(begin..bytes.len()),
                _ => Some(value_at(bytes, begin)),
            }
        }
        // `setdefault("TOKEN", "value")`
        b',' if is_quoted_name => Some(value_at(bytes, skip_spaces(bytes, separator + 1))),
        b'>' if before == Some(b'<') => {
            Some(separator + 1..end_of_run(bytes, separator + 1, |byte| byte != b'<'))
        }
        // In a URL, `=`, `:` and quotes may be escaped.
        b'%' if !is_spaced => {
            let is_in_value = |byte: u8| !byte.is_ascii_whitespace() && byte != b'&';
            Some(separator..end_of_run(bytes, separator, is_in_value))
        }
        // `read PASSWORD <<< value`
        b'<' if bytes[separator..].starts_with(b"<<<") => Some(separator + 3..bytes.len()),
        b'-' => None,
        _ if !is_spaced || is_quoted_name => None,
        _ if bytes[name.start] == b'-' || follows_set(&bytes[..name.start]) => {
            Some(value_at(bytes, separator))
        }
        _ => None,
    }
}

/// True if the word before a name is the command `set`.
fn follows_set(before: &[u8]) -> bool {
    let words = before.trim_ascii_end();
    words.len() < before.len() && words.ends_with(b"set") && !words[..words.len() - 3].ends_with(b"-")
}

/// The value that begins at `at`: a word or the inside of a plain string. If it is neither, or goes
/// on after it, the value is the rest of the text.
fn value_at(bytes: &[u8], at: usize) -> Range<usize> {
    // Python's `b"..."`, and quotes that are escaped inside another string.
    let prefix = end_of_run(bytes, at, |byte| byte.is_ascii_alphabetic() || byte == b'\\');
    let quote = bytes.get(prefix).copied().filter(|byte| matches!(byte, b'"' | b'\''));
    match quote.filter(|_| prefix - at <= 2) {
        Some(quote) => {
            let begin = prefix + 1;
            let end = end_of_string(bytes, begin, quote, bytes[at..prefix].contains(&b'\\'));
            let is_plain = end.is_some_and(|end| !goes_on(bytes, end, quote));
            begin..end.filter(|_| is_plain).unwrap_or(bytes.len())
        }
        None => at..end_of_word(bytes, at),
    }
}

/// The index of the closing quote; in an escaped string, of the backslash before it.
fn end_of_string(bytes: &[u8], begin: usize, quote: u8, is_escaped: bool) -> Option<usize> {
    let mut at = begin;
    while at < bytes.len() && bytes[at] != quote {
        if is_escaped && bytes[at] == b'\\' && bytes.get(at + 1) == Some(&quote) {
            return Some(at);
        }
        at += if bytes[at] == b'\\' && bytes.get(at + 1).is_some_and(u8::is_ascii) { 2 } else { 1 };
    }
    (at < bytes.len()).then_some(at)
}

/// True if a value goes on after the string that ends at `end`: with another string, as in `'a''b'`
/// and `'a' + b`, or with a word, as in `'a'b`.
fn goes_on(bytes: &[u8], end: usize, quote: u8) -> bool {
    let after = end_of_run(bytes, end, |byte| byte == b'\\');
    let after = after + usize::from(bytes.get(after) == Some(&quote));
    let Some(next) = bytes.get(after) else { return false };
    match next {
        byte if byte.is_ascii_whitespace() || *byte == b'\\' => {
            let spaces = |byte: u8| byte.is_ascii_whitespace() || byte == b'\\';
            let next = end_of_run(bytes, after, spaces);
            matches!(bytes.get(next), Some(b'"' | b'\'' | b'+' | b'%'))
        }
        // The string may be inside of another one.
        b'"' | b'\'' => {
            *next == quote || bytes.get(after + 1).is_some_and(|byte| !byte.is_ascii_whitespace())
        }
        byte => !WORD_ENDS.contains(byte),
    }
}

/// The end of a word, or of the text if the word contains what only a shell or Python can read.
fn end_of_word(bytes: &[u8], at: usize) -> usize {
    let end = end_of_run(bytes, at, |byte| !byte.is_ascii_whitespace() && !WORD_ENDS.contains(&byte));
    let word = &bytes[at..end];
    let is_expansion = |pair: &[u8]| pair[0] == b'$' && matches!(pair[1], b'(' | b'{');
    let is_open =
        word.iter().any(|byte| matches!(byte, b'`' | b'\\' | b'(')) || word.windows(2).any(is_expansion);
    // A quote inside of a word begins a string, unless it ends the one that the word is in.
    let is_in_string =
        |quote: u8| bytes[..at].iter().fold(false, |is_inside, byte| is_inside != (*byte == quote));
    let has_string = bytes.get(end).is_some_and(|byte| matches!(byte, b'"' | b'\'') && !is_in_string(*byte));
    if is_open || has_string { bytes.len() } else { end }
}
