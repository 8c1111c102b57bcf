//! How the traced process ended, in a few words.

use gpumemtrace_replay::report::Ending;

/// `exited normally (exit code 0)`, `killed (signal 9)`. Without a known exit code, `exited`: the
/// recorder sees that the process runs its exit handlers, not with which code.
pub(super) fn describe_ending(ending: Ending, detail: Option<&str>) -> String {
    let reason = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
    match ending {
        Ending::Exit => match (detail.and_then(exit_code), detail) {
            (Some("0"), _) => "exited normally (exit code 0)".to_owned(),
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(_)) => format!("exited{reason}"),
            (None, None) => "exited".to_owned(),
        },
        Ending::Killed if detail.is_none() => {
            "ended without closing the trace (killed, crashed, or replaced by exec)".to_owned()
        }
        Ending::Killed => format!("killed{reason}"),
        Ending::Crashed => format!("crashed{reason}"),
        Ending::Running => format!("still running{reason}"),
    }
}

/// The code in `exit 1` (from the parent process) or `_exit(1)` (from the process itself).
fn exit_code(detail: &str) -> Option<&str> {
    detail.strip_prefix("exit ").or_else(|| detail.strip_prefix("_exit(")?.strip_suffix(')'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_exit_needs_a_known_code_of_zero() {
        for (ending, detail, text) in [
            (Ending::Exit, Some("exit 0"), "exited normally (exit code 0)"),
            (Ending::Exit, Some("_exit(0)"), "exited normally (exit code 0)"),
            (Ending::Exit, Some("exit 7"), "exited with code 7"),
            (Ending::Exit, None, "exited"),
            (
                Ending::Exit,
                Some("recording stopped before the program did"),
                "exited (recording stopped before the program did)",
            ),
            (Ending::Killed, Some("signal 9"), "killed (signal 9)"),
            (Ending::Killed, None, "ended without closing the trace (killed, crashed, or replaced by exec)"),
            (Ending::Crashed, Some("signal 11"), "crashed (signal 11)"),
            (Ending::Running, None, "still running"),
        ] {
            assert_eq!(describe_ending(ending, detail), text);
        }
    }
}
