//! Formats the metadata of a trace for people: names of keys, units and dates.
//!
//! Keys without a label print under their own name, so metadata of newer recorders stays visible.

use gpumemtrace_format::MetaValue;
use gpumemtrace_replay::report::Ending;

use crate::terminal::format::format_utc;

/// The label of each key of META (`docs/trace-format.md`). Keys that contain a GPU are not listed.
const LABELS: &[(&str, &str)] = &[
    ("trace_id", "trace ID"),
    ("tool", "recorded by"),
    ("pid", "process ID"),
    ("user_id", "user ID"),
    ("folders", "folders of the run"),
    ("local_rank", "local rank"),
    ("world_size", "world size"),
    ("command_line", "command line"),
    ("started_unix_ns", "started"),
    ("started_ns", "clock at start"),
    ("git_commit", "git commit"),
    ("labels", "labels"),
    ("stacks", "call stacks"),
    ("on_full", "when a ring buffer is full"),
    ("allocator_conf", "PYTORCH_CUDA_ALLOC_CONF"),
    ("allocator_conf_generic", "PYTORCH_ALLOC_CONF"),
    ("apis", "intercepted functions"),
    ("python", "Python"),
    ("torch", "PyTorch"),
    ("torch_cuda", "CUDA of PyTorch"),
    ("cuda_runtime", "CUDA runtime"),
    ("cuda_driver", "CUDA driver"),
    ("pluggable", "pluggable allocator"),
    ("uncovered", "calls not recorded"),
    ("rings", "ring buffers"),
    ("dropped_parts", "dropped parts"),
    ("dropped_part_events", "events in dropped parts"),
    ("snapshot.accelerator", "accelerator"),
    ("snapshot.padding_bytes", "bytes added to each request"),
    ("snapshot.events", "events of PyTorch's allocator"),
    ("snapshot.start_blocks", "blocks older than the first event"),
    ("snapshot.start_bytes", "bytes of those blocks"),
    ("snapshot.overwritten", "oldest events overwritten (1: yes)"),
    ("snapshot.max_entries", "ring buffer entries (max_entries)"),
    ("snapshot.without_segments", "without segments (1: yes)"),
    ("snapshot.contradictions", "contradicting events"),
    ("snapshot.checked_sizes", "block sizes compared with the end"),
    ("snapshot.wrong_sizes", "block sizes computed wrong"),
    ("snapshot.unknown_events", "events of unknown actions"),
    ("snapshot.unknown_keys", "unknown keys"),
    ("snapshot.strange_entries", "list entries not understood"),
    ("snapshot.host_events", "events of pinned host memory"),
    ("snapshot.dropped_texts", "texts dropped"),
    ("wait_status", "wait status"),
];

/// One entry as `label: value`. Without `is_verbose` the intercepted functions are only counted.
pub(super) fn describe_entry(key: &str, value: &MetaValue, is_verbose: bool) -> String {
    format!("{}: {}", label_key(key), describe_value(key, value, is_verbose))
}

fn label_key(key: &str) -> String {
    if let Some((gpu, what)) = split_device_key(key) {
        let what = if what == "total_bytes" { "total memory" } else { what };
        return format!("GPU {gpu} {what}");
    }
    let label = LABELS.iter().find(|(known, _)| *known == key);
    label.map_or(key, |(_, label)| label).to_owned()
}

fn describe_value(key: &str, value: &MetaValue, is_verbose: bool) -> String {
    match value {
        MetaValue::Number(ns) if key == "started_unix_ns" => format_utc(*ns),
        MetaValue::Number(ns) if key == "started_ns" => format!("{ns} ns"),
        MetaValue::Number(bytes) if split_device_key(key).is_some_and(|(_, what)| what == "total_bytes") => {
            format!("{} ({bytes} bytes)", crate::terminal::units::format_bytes(*bytes))
        }
        MetaValue::Number(number) => number.to_string(),
        MetaValue::Text(text) => text.clone(),
        MetaValue::List(names) if key == "apis" => {
            // Unused indexes have the name "-".
            let names: Vec<&str> = names.iter().map(String::as_str).filter(|name| *name != "-").collect();
            if is_verbose { names.join(" ") } else { format!("{} (-v lists them)", names.len()) }
        }
        MetaValue::List(words) if key == "command" => words.join(" "),
        MetaValue::List(list) => list.join(", "),
    }
}

/// `device.0.name` as `("0", "name")`.
fn split_device_key(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix("device.")?.split_once('.')
}

/// What closed the recording, from [`gpumemtrace_replay::ingest::TraceHead::ending`].
pub(super) fn describe_ending(ending: Ending, detail: Option<&str>) -> String {
    let detail = detail.map(|detail| match detail.strip_prefix("exit ") {
        Some(code) => format!("code {code}"),
        None => detail.to_owned(),
    });
    let (what, otherwise) = match ending {
        Ending::Exit => ("exit", ""),
        Ending::Killed => ("nothing; the process was killed", ", crashed, or replaced by exec"),
        Ending::Crashed => ("nothing; the process crashed", ""),
        Ending::Running => ("nothing yet; the program is running", ""),
    };
    detail.map_or_else(|| format!("{what}{otherwise}"), |detail| format!("{what} ({detail})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_labels_units_and_counts() {
        let functions = MetaValue::List(["-", "cuMemAlloc_v2", "cuMemFree_v2"].map(str::to_owned).to_vec());
        for (key, value, is_verbose, line) in [
            (
                "device.0.total_bytes",
                MetaValue::Number(80 << 30),
                false,
                "GPU 0 total memory: 80.00 GiB (85899345920 bytes)",
            ),
            ("device.1.name", MetaValue::Text("NVIDIA H100".to_owned()), false, "GPU 1 name: NVIDIA H100"),
            ("apis", functions.clone(), false, "intercepted functions: 2 (-v lists them)"),
            ("apis", functions, true, "intercepted functions: cuMemAlloc_v2 cuMemFree_v2"),
            ("future_key", MetaValue::Number(7), false, "future_key: 7"),
        ] {
            assert_eq!(describe_entry(key, &value, is_verbose), line);
        }
    }

    #[test]
    fn ending_names_exit_code_signal_or_neither() {
        for (ending, detail, text) in [
            (Ending::Exit, Some("exit 0"), "exit (code 0)"),
            (Ending::Exit, Some("_exit(3)"), "exit (_exit(3))"),
            (Ending::Exit, None, "exit"),
            (Ending::Killed, Some("signal 9"), "nothing; the process was killed (signal 9)"),
            (Ending::Killed, None, "nothing; the process was killed, crashed, or replaced by exec"),
            (Ending::Crashed, Some("signal 11"), "nothing; the process crashed (signal 11)"),
            (Ending::Running, None, "nothing yet; the program is running"),
        ] {
            assert_eq!(describe_ending(ending, detail), text);
        }
    }
}
