//! The last step of every text: escapes what controls a terminal, fits lines to the width, and adds
//! colours.
//!
//! Names in a trace may hold anything, and many places build text from them. Those places write
//! plain lines with the marks of `marks.rs`; only here do they become terminal output. A line that
//! is too wide first loses the front of its paths, never the file name and line. Then it wraps,
//! indented under its own beginning. Output without [`Style::wraps`] keeps its lines whole.
//!
//! Not textwrap: paths are shortened before a line wraps, rows continue under a marked column, and
//! colours continue on the next line.

use unicode_width::UnicodeWidthChar;

use super::escape::escape_except;
use super::marks::{BOLD, DIM, HANG, PLAIN, WARN, is_mark};
use super::stdout::SGR_CODES;
use super::style::Style;

/// Least width of the indented lines that continue a wrapped line.
const LEAST_ROOM: usize = 20;

/// The width of a text on a terminal, in columns.
pub(crate) fn display_width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

fn char_width(c: char) -> usize {
    if is_mark(c) { 0 } else { c.width().unwrap_or(0) }
}

/// Turns a text with marks into terminal output.
pub(crate) fn finish_text(text: &str, style: Style) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    for line in text.lines() {
        let line = escape_except(line, is_mark);
        let line = line.trim_end();
        let lines = if style.wraps { wrap_line(line, style) } else { vec![line.to_owned()] };
        for line in lines {
            write_painted(&mut out, &line, style.color);
            out.push('\n');
        }
    }
    out
}

fn write_painted(out: &mut String, line: &str, color: bool) {
    for c in line.chars() {
        let code = match c {
            BOLD => SGR_CODES[0],
            WARN => SGR_CODES[1],
            DIM => SGR_CODES[2],
            PLAIN => SGR_CODES[3],
            c if is_mark(c) => continue,
            c => {
                out.push(c);
                continue;
            }
        };
        if color {
            out.push_str(code);
        }
    }
}

/// A word, with the spaces before it.
struct LayoutWord {
    spaces: usize,
    text: String,
}

/// True for a unit, which stays on the line of its number.
fn is_unit(word: &str) -> bool {
    let unit = word.trim_end_matches(|c| is_mark(c) || matches!(c, ')' | '.' | ',' | ';' | ':'));
    matches!(
        unit,
        "B" | "KiB" | "MiB" | "GiB" | "TiB" | "PiB" | "MB" | "GB" | "%" | "s" | "ms" | "us" | "min" | "h"
    )
}

#[allow(clippy::trivially_copy_pass_by_ref, clippy::ptr_arg, reason = "as `filter` passes it")]
fn ends_in_digit(word: &&mut LayoutWord) -> bool {
    word.text.trim_end_matches(is_mark).ends_with(|c: char| c.is_ascii_digit())
}

fn split_words(line: &str) -> Vec<LayoutWord> {
    let (mut words, mut spaces): (Vec<LayoutWord>, usize) = (Vec::new(), 0);
    for piece in line.split(' ') {
        if piece.is_empty() {
            spaces += 1;
        } else if let Some(number) =
            words.last_mut().filter(|_| spaces == 1 && is_unit(piece)).filter(ends_in_digit)
        {
            number.text.push(' ');
            number.text.push_str(piece);
        } else {
            words.push(LayoutWord { spaces, text: piece.to_owned() });
            spaces = 1;
        }
    }
    words
}

/// Splits a line into lines of at most `style.width` columns.
fn wrap_line(line: &str, style: Style) -> Vec<String> {
    let limit = style.width;
    if display_width(line) <= limit {
        return vec![line.to_owned()];
    }
    let (hang, is_row) = hanging_indent(line, limit);
    let mut words = split_words(line);
    if is_row {
        shorten_row(&mut words, limit, style);
    }
    let room = limit - hang;
    let mut lines = Vec::new();
    let (mut now, mut taken, mut painted) = (String::new(), 0, None);
    // Spaces between words are kept, except at the end of a line.
    let mut at_start = true;
    for LayoutWord { spaces, mut text } in words {
        if display_width(&text) > room {
            text = shorten_path(&text, room, style);
        }
        let wide = display_width(&text);
        let fits = taken + spaces + wide <= limit || wide == 0;
        if !fits && !at_start {
            break_line(&mut lines, &mut now, painted, hang);
            (taken, at_start) = (hang, true);
        }
        if wide > 0 && (!at_start || lines.is_empty()) {
            let spaces = if at_start { spaces.min(limit / 2) } else { spaces };
            now.extend(std::iter::repeat_n(' ', spaces));
            taken += spaces;
        }
        // A word that is wider than a whole line is broken.
        for c in text.chars() {
            if taken + char_width(c) > limit {
                break_line(&mut lines, &mut now, painted, hang);
                taken = hang;
            }
            taken += char_width(c);
            push_char(&mut now, c, &mut painted);
        }
        at_start = false;
    }
    lines.push(now);
    lines
}

/// The indentation of continuation lines, and whether the line is a row (has the mark [`HANG`]).
fn hanging_indent(line: &str, limit: usize) -> (usize, bool) {
    let indent = line.chars().take_while(|c| *c == ' ').count();
    let marked = line.find(HANG).map(|at| display_width(&line[..at]));
    let body = line[indent..].trim_start_matches(is_mark);
    // Continue under the text behind a bullet or number.
    let bullet = match body.find(' ') {
        Some(1) if body.starts_with(['-', '!', '>']) => 2,
        Some(at) if body[..at].strip_suffix('.').is_some_and(|n| n.parse::<u32>().is_ok()) => at + 1,
        _ => 2,
    };
    let wanted = marked.unwrap_or(indent + bullet);
    let hang = if wanted + LEAST_ROOM <= limit { wanted } else { (indent + 4).min(limit / 4) };
    (hang, marked.is_some())
}

fn push_char(now: &mut String, c: char, painted: &mut Option<char>) {
    match c {
        BOLD | WARN | DIM => *painted = Some(c),
        PLAIN => *painted = None,
        _ => {}
    }
    now.push(c);
}

/// Starts the next line. Colour continues behind the indentation.
fn break_line(lines: &mut Vec<String>, now: &mut String, painted: Option<char>, hang: usize) {
    let mut line = std::mem::take(now);
    if painted.is_some() {
        line.push(PLAIN);
    }
    lines.push(line);
    now.extend(std::iter::repeat_n(' ', hang));
    now.extend(painted);
}

/// Shortens the longest paths of a row until it fits, or no path is left to shorten.
fn shorten_row(words: &mut [LayoutWord], limit: usize, style: Style) {
    let wide = |words: &[LayoutWord]| {
        words.iter().map(|word| word.spaces + display_width(&word.text)).sum::<usize>()
    };
    let mut order: Vec<usize> = (0..words.len()).filter(|at| is_path(&words[*at].text)).collect();
    order.sort_by_key(|at| std::cmp::Reverse(display_width(&words[*at].text)));
    for at in order {
        let over = wide(words).saturating_sub(limit);
        if over == 0 {
            return;
        }
        let room = display_width(&words[at].text).saturating_sub(over);
        words[at].text = shorten_path(&words[at].text, room, style);
    }
}

/// The position of the drive's letter in a word with a path of Windows. Other backslashes belong
/// to escapes such as `\u{1b}`.
fn drive_at(word: &str) -> Option<usize> {
    let root = word.find(":\\").filter(|root| !word[root + 1..].starts_with("\\u{"))?;
    let at = root.checked_sub(1)?;
    word.as_bytes()[at].is_ascii_alphabetic().then_some(at)
}

fn is_path(word: &str) -> bool {
    word.contains('/') || drive_at(word).is_some()
}

/// Removes the first folders of a path until it fits. Its last component always stays whole.
fn shorten_path(word: &str, room: usize, style: Style) -> String {
    let dots = style.ellipsis();
    // Keep opening parentheses, quotes and marks before the path.
    let front = word.find(|c: char| !is_mark(c) && c != '(' && c != '"').unwrap_or(0);
    let (front, path) = word.split_at(front);
    let is_slash = |c: char| c == '/' || c == '\\' && drive_at(path) == Some(0);
    // Text behind the last slash, such as `file.py:12`, stays.
    let Some(last) = path.rfind(is_slash) else { return word.to_owned() };
    let cuts = path.match_indices(is_slash).map(|(at, _)| at).filter(|at| *at > 0 && *at <= last);
    let mut shortest = word.to_owned();
    for at in cuts {
        let text = format!("{front}{dots}{}", &path[at..]);
        let is_shorter = display_width(&text) < display_width(&shortest);
        if is_shorter {
            shortest = text;
        }
        if display_width(&shortest) <= room {
            break;
        }
    }
    shortest
}

#[cfg(test)]
mod tests {
    use super::super::escape::{escape_text, needs_escape};
    use super::*;
    use proptest::prelude::*;

    fn style(width: usize) -> Style {
        Style { width, ..Style::PLAIN }
    }

    #[test]
    fn row_shortens_path_but_keeps_file_name() {
        let row = format!("    1.00 MiB  50 %  {HANG}/home/me/work/project/model.py:20 in Net.forward()");
        let at = |width| finish_text(&row, style(width));
        assert_eq!(at(80), "    1.00 MiB  50 %  /home/me/work/project/model.py:20 in Net.forward()\n");
        assert_eq!(at(65), "    1.00 MiB  50 %  …/work/project/model.py:20 in Net.forward()\n");
        assert_eq!(at(62), "    1.00 MiB  50 %  …/project/model.py:20 in Net.forward()\n");
        assert_eq!(at(52), "    1.00 MiB  50 %  …/model.py:20 in Net.forward()\n");
        assert_eq!(at(40), "    1.00 MiB  50 %  …/model.py:20 in\n                    Net.forward()\n");
        let windows = row.replace('/', "\\").replace("\\home", "C:\\home");
        assert_eq!(
            finish_text(&windows, style(62)),
            "    1.00 MiB  50 %  …\\project\\model.py:20 in Net.forward()\n"
        );
        let ascii = finish_text(&row, Style { ascii: true, ..style(58) });
        assert_eq!(ascii, "    1.00 MiB  50 %  .../model.py:20 in Net.forward()\n");
    }

    #[test]
    fn wrapped_sentence_is_indented_and_keeps_colour() {
        let text = format!("  - {WARN}one two three{PLAIN} four five six seven eight nine");
        assert_eq!(
            finish_text(&text, style(24)),
            "  - one two three four\n    five six seven eight\n    nine\n"
        );
        let text = format!("  {BOLD}one two three four five{PLAIN} six");
        assert_eq!(
            finish_text(&text, Style { color: true, ..style(21) }),
            "  \x1b[1mone two three four\x1b[0m\n     \x1b[1mfive\x1b[0m six\n"
        );
    }

    #[test]
    fn unwrapped_output_keeps_long_lines_and_paths() {
        let row = format!("  - {}  {HANG}/home/me/work/project/model.py:20 in f()", "x ".repeat(60));
        let shown = finish_text(&row, Style { wraps: false, ..style(40) });
        assert_eq!(shown, row.replace(HANG, "") + "\n");
    }

    #[test]
    fn wide_characters_take_two_columns_and_long_words_break() {
        assert_eq!(finish_text("字字字字 字字", style(11)), "字字字字\n  字字\n");
        let size =
            |style: Style| finish_text(&format!("{} {} xx", "x".repeat(34), style.bold("1.00 MiB")), style);
        assert_eq!(size(style(40)), format!("{}\n  1.00 MiB xx\n", "x".repeat(34)));
        let painted = size(Style { color: true, ..style(40) });
        assert_eq!(
            painted.replace("\x1b[1m", "").replace("\x1b[0m", ""),
            size(style(40)),
            "colours do not change the layout"
        );
        assert_eq!(
            finish_text(&"x".repeat(50), style(40)),
            format!("{}\n  {}\n", "x".repeat(40), "x".repeat(10))
        );
    }

    #[test]
    fn escape_sequences_are_written_out() {
        let evil = "a\x1b[31mb\u{9b}2Jc\rd\u{202e}e\u{7f}f";
        let shown = "a\\u{1b}[31mb\\u{9b}2Jc\\rd\\u{202e}e\\u{7f}f\n";
        assert_eq!(finish_text(evil, style(80)), shown);
        let all = Style { color: true, ..style(80) };
        assert_eq!(finish_text(&escape_text("a\u{fdd0}\nb"), all), "a\\u{fdd0}\\nb\n");
    }

    proptest! {
        #[test]
        fn lines_fit_and_words_survive_without_harmful_characters(
            indent in 0usize..12,
            hang in any::<bool>(),
            words in proptest::collection::vec("[a-zA-Z0-9./:字é\u{1b}\u{9b}\u{202e}\u{fdd0}-\u{fdd4}]{0,60}", 0..20),
            width in 40usize..200,
            color in any::<bool>(),
        ) {
            let mark = if hang { HANG.to_string() } else { String::new() };
            let line = format!("{:indent$}{mark}{}", "", words.join(" "));
            let shown = finish_text(&line, Style { color, ..style(width) });
            let plain = shown.replace("\x1b[1m", "").replace("\x1b[1;33m", "").replace("\x1b[2m", "").replace("\x1b[0m", "");
            for line in plain.lines() {
                prop_assert!(display_width(line) <= width, "{width}: {line:?}");
                prop_assert!(!line.contains(needs_escape), "{line:?}");
            }
            // The part of each word behind its last slash is still there.
            let squeezed: String = plain.chars().filter(|c| !c.is_whitespace()).collect();
            for word in &words {
                let word: String = escape_except(word, is_mark).chars().filter(|c| !is_mark(*c)).collect();
                let last = word.rsplit('/').next().unwrap_or("");
                prop_assert!(squeezed.contains(last), "{last} of {word} in {plain}");
            }
        }

        #[test]
        fn fitting_line_is_unchanged(line in "[a-z/ .:]{0,40}") {
            let shown = finish_text(&line, style(40));
            prop_assert_eq!(shown.trim_end(), line.trim_end());
        }
    }
}
