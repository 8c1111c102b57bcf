//! Bar charts in eighths of a row, with a second series as an outline, and a fallback to ASCII.
//!
//! No crate draws this kind of chart.

use std::ops::Range;

use crate::terminal::style::Style;

const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The closest ASCII characters.
const ASCII: [char; 9] = [' ', '.', '.', '.', ':', ':', ':', '#', '#'];

/// The characters for a full cell and for the outline, as a legend shows them.
pub(crate) fn glyphs(style: Style) -> (char, char) {
    if style.ascii { (ASCII[8], '-') } else { (EIGHTHS[8], '─') }
}

/// The rows of a chart, top first. `values` and `outline` have one entry per column. `floor` is the
/// value of the lower edge, `most` that of the upper.
pub(crate) fn draw_rows(
    values: &[u64],
    outline: &[u64],
    (floor, most, height): (u64, u64, usize),
    style: Style,
) -> Vec<String> {
    let steps = (height * 8) as u128;
    let eighths = if style.ascii { ASCII } else { EIGHTHS };
    let (_, line) = glyphs(style);
    let range = u128::from(most.saturating_sub(floor).max(1));
    // Any value above 0 is visible.
    let level = |value: u64| {
        let above = u128::from(value.saturating_sub(floor));
        let filled = usize::try_from(above * steps / range).unwrap_or(usize::MAX);
        filled.max(usize::from(value > 0))
    };
    (0..height)
        .rev()
        .map(|row| {
            let column = |(at, value): (usize, &u64)| {
                let fill = eighths[level(*value).saturating_sub(row * 8).min(8)];
                let top = outline.get(at).map_or(0, |value| level(*value));
                let is_outline = top > 0 && (top - 1) / 8 == row;
                if fill == ' ' && is_outline { line } else { fill }
            };
            values.iter().enumerate().map(column).collect()
        })
        .collect()
}

/// The highest value in each column. Points are in order of time, each with its columns. A column
/// without points repeats the last value.
pub(crate) fn highest_in_columns(
    points: impl Iterator<Item = (Range<usize>, u64)>,
    columns: usize,
) -> Vec<u64> {
    // The highest and the last value of each column.
    let mut values: Vec<Option<(u64, u64)>> = vec![None; columns];
    for (at, value) in points {
        for column in values.get_mut(at).into_iter().flatten() {
            *column = Some((column.map_or(value, |(highest, _)| highest.max(value)), value));
        }
    }
    let mut before = 0;
    let show = |column: Option<(u64, u64)>| {
        let (highest, last) = column.unwrap_or((before, before));
        before = last;
        highest
    };
    values.into_iter().map(show).collect()
}

/// The column of `time`, when the span from `first` to `last` has `columns` equal intervals.
pub(crate) fn column_at(time: u64, (first, last): (u64, u64), columns: usize) -> usize {
    let span = u128::from(last.saturating_sub(first)) + 1;
    let column = (u128::from(time.saturating_sub(first)) * columns as u128 / span) as usize;
    column.min(columns.saturating_sub(1))
}

/// A line with words at the given columns. The last word is right-aligned; words that would overlap
/// are left out.
pub(crate) fn place_labels(words: &[(usize, String)], width: usize) -> String {
    let mut line = String::new();
    let mut end = 0;
    for (number, (at, word)) in words.iter().enumerate() {
        let long = word.chars().count();
        let begin = if number + 1 == words.len() { width.saturating_sub(long) } else { *at };
        let room = if number == 0 { 0 } else { end + 2 };
        let last =
            words.last().filter(|_| number + 1 < words.len()).map_or(0, |(_, word)| word.chars().count() + 2);
        if begin < room || begin + long + last > width.max(long) {
            continue;
        }
        line.extend(std::iter::repeat_n(' ', begin - end));
        line.push_str(word);
        end = begin + long;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UTF8: Style = Style::PLAIN;
    const PLAIN: Style = Style { ascii: true, ..Style::PLAIN };

    #[test]
    fn bars_scale_with_values_and_small_values_are_visible() {
        assert_eq!(draw_rows(&[0, 1, 8, 16], &[], (0, 16, 2), UTF8), ["   █", " ▁██"]);
        assert_eq!(draw_rows(&[0, 1, 12, 16], &[], (0, 16, 2), PLAIN), ["  :#", " .##"]);
    }

    #[test]
    fn scale_may_begin_above_zero_and_cuts_off_an_outline_above_it() {
        assert_eq!(draw_rows(&[100, 108, 116], &[], (100, 116, 2), UTF8), ["  █", "▁██"]);
        assert_eq!(draw_rows(&[100, 108], &[110, 200], (100, 116, 2), UTF8), ["─ ", "▁█"]);
    }

    #[test]
    fn outline_is_drawn_above_bars() {
        assert_eq!(draw_rows(&[0, 2, 16, 8], &[0, 9, 16, 8], (0, 16, 2), UTF8), [" ─█ ", " ▂██"]);
        assert_eq!(draw_rows(&[0, 0], &[8, 16], (0, 16, 2), PLAIN), [" -", "- "]);
    }

    #[test]
    fn column_has_its_highest_point_and_carries_the_last_one() {
        let points = [(0, 5), (0, 9), (0, 3), (3, 7)].map(|(at, value)| (at..at + 1, value));
        assert_eq!(highest_in_columns(points.into_iter(), 4), [9, 3, 3, 7]);
        assert_eq!(highest_in_columns([(0..3, 4)].into_iter(), 4), [4, 4, 4, 4]);
        assert_eq!(highest_in_columns([].into_iter(), 2), [0, 0]);
    }

    #[test]
    fn overlapping_labels_are_omitted() {
        let words = |words: &[(usize, &str)]| -> Vec<(usize, String)> {
            words.iter().map(|(at, word)| (*at, (*word).to_owned())).collect()
        };
        assert_eq!(place_labels(&words(&[(0, "0 us"), (8, "1 s"), (19, "2 s")]), 20), "0 us    1 s      2 s");
        assert_eq!(place_labels(&words(&[(0, "0 us"), (3, "1 s"), (9, "2 s")]), 10), "0 us   2 s");
    }

    proptest! {
        #[test]
        fn rows_have_one_character_per_column(
            values in proptest::collection::vec(any::<u64>(), 0..90), outline in proptest::collection::vec(any::<u64>(), 0..90),
            floor in any::<u64>(), most in any::<u64>(), ascii in any::<bool>(),
        ) {
            let shown = draw_rows(&values, &outline, (floor, most, 12), Style { ascii, ..Style::PLAIN });
            prop_assert_eq!(shown.len(), 12);
            for row in shown {
                prop_assert_eq!(row.chars().count(), values.len());
                prop_assert!(!ascii || row.is_ascii());
            }
        }

        #[test]
        fn labels_fit_their_width(words in proptest::collection::vec((0usize..100, "[a-z]{1,12}"), 1..8), width in 20usize..100) {
            let mut words = words;
            words.sort();
            prop_assert!(place_labels(&words, width).chars().count() <= width);
        }
    }
}
