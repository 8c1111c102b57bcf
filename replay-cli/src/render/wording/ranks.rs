//! Ranks side by side, as phrases.

use gpumemtrace_replay::report::{FirstCause, RankRow};

use super::sites::format_rank;
use crate::terminal::format::{format_count, format_number};

/// Why no rank is named as the first that grew.
pub(crate) const UNALIGNED_RANKS: &str =
    "Which one grew first is unknown: the traces have different sources of steps, or none.";

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
