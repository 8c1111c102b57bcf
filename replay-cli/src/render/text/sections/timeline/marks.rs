//! The program's marks below the chart: a letter at each, and what the letters stand for.

use gpumemtrace_replay::report::Mark;

use super::ChartFrame;
use crate::render::wording::Vocabulary;
use crate::render::wording::moment::format_moment;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, put_line};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most marks listed without `--top`.
const MAX_MARKS: usize = 12;
/// The names of marks in the chart.
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

pub(super) fn render_marks(
    out: &mut String,
    (marks, words): (&[&Mark], &Vocabulary),
    ChartFrame { margin, width, range }: ChartFrame<'_>,
    style: Style,
) {
    if marks.is_empty() {
        return;
    }
    let shown = style.row_limit(MAX_MARKS).min(LETTERS.len());
    let mut letters = vec![' '; width];
    let mut rows = Vec::new();
    for (mark, letter) in marks.iter().take(shown).zip(LETTERS.chars()) {
        // A column shows the first of its marks; the list has all of them.
        let place = &mut letters[range.column_of(mark.time_ns)];
        if *place == ' ' && range.contains(mark.time_ns) {
            *place = letter;
        }
        let name = escape_text(mark.name.as_deref().unwrap_or("(name lost)"));
        rows.push(format!("{letter} {HANG}{name} ({})", format_moment(words, mark.time_ns, mark.step)));
    }
    put_line(out, format_args!("{:margin$}  {}", "", letters.iter().collect::<String>().trim_end()));
    put_line(out, format_args!("{:margin$}  {HANG}marks:", ""));
    for row in rows {
        put_line(out, format_args!("{:margin$}    {row}", ""));
    }
    if marks.len() > shown {
        let more = format_count((marks.len() - shown) as u64, "more mark");
        put_line(out, format_args!("{:margin$}    {more}", ""));
    }
}
