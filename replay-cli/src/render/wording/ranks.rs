//! Ranks side by side, as phrases.

use gpumemtrace_replay::report::{FirstCause, RankRow};

use super::sites::format_rank;
use crate::terminal::format::{format_count, format_number};

/// Why the steps of traces cannot be compared.
pub(crate) const UNEQUAL_STEPS: &str = "the traces have different sources of steps, or none";

/// Why no row is named as the first that grew.
pub(crate) fn describe_unaligned(rows: &[RankRow]) -> String {
    let is_other = |row: &RankRow, other: &RankRow| row.rank == other.rank && row.trace != other.trace;
    let is_repeated = |row: &RankRow| row.rank.is_some() && rows.iter().any(|other| is_other(row, other));
    let why = match rows.iter().find(|row| is_repeated(row)).and_then(|row| row.rank) {
        Some(rank) => format!(
            "rank {rank} has several traces, as after a restart; gpumemtrace ranks compares each attempt by itself"
        ),
        None => UNEQUAL_STEPS.to_owned(),
    };
    format!("Which one grew first is unknown: {why}.")
}

/// Most ranges of [`format_ranks`].
const MAX_RANGES: usize = 8;

/// Ascending ranks as `ranks 0 to 5, 7, 9 to 31 and 12 more`.
pub(crate) fn format_ranks<'a>(ranks: impl IntoIterator<Item = &'a u64>) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for rank in ranks {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            _ => ranges.push((*rank, *rank)),
        }
    }
    let text = |(first, last): &(u64, u64)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    };
    let shown: Vec<String> = ranges.iter().take(MAX_RANGES).map(text).collect();
    let rest = ranges.iter().skip(MAX_RANGES);
    let more = rest.fold(0, |sum: u64, (first, last)| sum.saturating_add(last - first).saturating_add(1));
    let more = if more > 0 { format!(" and {} more", format_number(more)) } else { String::new() };
    let s = if matches!(ranges[..], [(first, last)] if first == last) { "" } else { "s" };
    format!("rank{s} {}{more}", shown.join(", "))
}

/// `Growth began in rank 1 in step 5`, and behind the call site, `no other grows; confidence high`.
pub(crate) fn describe_first_cause(first: &FirstCause, rows: &[RankRow]) -> (String, String) {
    let lead = match first.lead_steps {
        None => "no other grows".to_owned(),
        Some(0) => "others in the same step".to_owned(),
        Some(steps) => format!("{} before any other", format_count(steps, "step")),
    };
    let name = format_rank(&rows[first.row as usize], rows);
    let began = format!("Growth began in {name} in step {}", format_number(first.step));
    (began, format!("{lead}; confidence {}", first.confidence.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_ranges_and_the_rest_is_counted() {
        let text = |ranks: &[u64]| format_ranks(ranks);
        assert_eq!(text(&[3]), "rank 3");
        assert_eq!(text(&[0, 1, 2, 5, 7, 8, u64::MAX]), "ranks 0 to 2, 5, 7, 8, 18446744073709551615");
        let odd: Vec<u64> = (0..10).map(|rank| 2 * rank + 1).chain([20]).collect();
        assert_eq!(text(&odd), "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 3 more");
    }
}
