//! The id of a run: equal in every export of the same traces, and a valid name of a folder.

use super::TraceIdentity;
use crate::terminal::format::format_utc;

/// Longest part of a host name in an id.
const MAX_HOST_CHARS: usize = 40;
/// Longest name of a run that the user gives.
const MAX_NAME_CHARS: usize = 100;
/// What engines read as NULL in a path.
pub(crate) const HIVE_NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Start, host and process of the trace with the lowest rank, such as
/// `20261123T154700Z-node7-4242`.
///
/// Give all ranks of a run at once: alone, each has an id of its own. For a trace without these
/// facts the id is the name of its file, and the second value is false.
pub(super) fn run_id(traces: &[TraceIdentity]) -> (String, bool) {
    let first = traces.iter().min_by(|one, other| {
        let order = |trace: &TraceIdentity| (trace.rank.is_none(), trace.rank);
        order(one).cmp(&order(other)).then_with(|| one.process_order().cmp(&other.process_order()))
    });
    let Some(first) = first else { return ("run".to_owned(), false) };
    let process = &first.process;
    let started = process.started_unix_ns.map(|unix_ns| format_utc(unix_ns).replace(['-', ':'], ""));
    let host = process.host.as_deref().map(file_name_part);
    let pid = process.pid.map(|pid| pid.to_string());
    if started.is_none() || pid.is_none() {
        let file = std::path::Path::new(&first.path).file_stem().unwrap_or_default();
        return (file_name_part(&file.to_string_lossy()), false);
    }
    let parts: Vec<String> = [started, host, pid].into_iter().flatten().collect();
    (parts.join("-"), true)
}

/// True if a text can be the name of a run as it is.
pub(crate) fn is_file_name_part(text: &str) -> bool {
    (1..=MAX_NAME_CHARS).contains(&text.len()) && text.chars().all(is_plain) && !text.starts_with('.')
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// A text with `_` for everything but ASCII letters, digits, `.` and `_`.
fn file_name_part(text: &str) -> String {
    let part: String = text.chars().take(MAX_HOST_CHARS).map(|c| if is_plain(c) { c } else { '_' }).collect();
    // Names of dots alone are folders, and readers pass over hidden ones.
    let part = part.trim_start_matches('.');
    if part.is_empty() || part == HIVE_NULL { "unknown".to_owned() } else { part.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_folders_are_plain() {
        for (text, part) in [
            ("node-7.example", "node-7.example"),
            ("../../etc", "_.._etc"),
            ("a=b/c\n", "a_b_c_"),
            ("..", "unknown"),
            ("", "unknown"),
            (HIVE_NULL, "unknown"),
        ] {
            assert_eq!(file_name_part(text), part);
        }
    }
}
