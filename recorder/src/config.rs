//! The settings of a recording, read from environment variables.
//!
//! Environment variables are the only way to pass settings to a preloaded library. A mistyped value
//! must neither stop the program nor be ignored silently: one line on stderr names the variable,
//! the allowed values, and the value used instead.

use std::ffi::OsString;

use gpumemtrace_format::labels::Label;
use gpumemtrace_format::size_arg::{self, PartLimit};

use crate::diagnostics::print_diagnostic;
use crate::job::JobPlace;
use crate::labels::labels_from_lookup;
use crate::stacks::cache::MAX_DEPTH;

/// Memory limit of the recorder unless the user sets one.
const DEFAULT_MEMORY_BYTES: u64 = 64 << 20;

/// Which call stacks are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StackConfig {
    pub(crate) python: bool,
    pub(crate) native: NativeStacks,
}

/// Which events get a native stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NativeStacks {
    None,
    /// Driver calls that allocate: their stack shows which library owns the memory.
    Owners,
    All,
}

/// What a thread does when its ring is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FullRingPolicy {
    /// Wait for the writer thread.
    Block,
    /// Drop the event and count it.
    Drop,
}

/// The settings of one recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RecorderConfig {
    /// `GPUMEMTRACE_OUTPUT`: pattern of a file or folder; `%p` pid, `%r` rank, `%h` host, `%j` job.
    /// `None` if it is not set.
    pub(crate) output: Option<OsString>,
    pub(crate) place: JobPlace,
    /// `GPUMEMTRACE_LABELS`, and the labels of the scheduler.
    pub(crate) labels: Vec<Label>,
    /// `GPUMEMTRACE_COMMAND_LINE`: whether the command line is recorded, `on` (default) or `off`.
    pub(crate) records_command_line: bool,
    /// `GPUMEMTRACE_STACKS`: `python` (default), `native`, `both`, `none`.
    pub(crate) stacks: StackConfig,
    /// `GPUMEMTRACE_DEPTH`: largest number of frames in a stack, 1 to [`MAX_DEPTH`] (default).
    /// Outer frames beyond it are omitted.
    pub(crate) depth: usize,
    /// `GPUMEMTRACE_ON_FULL`: `block` (default), `drop`.
    pub(crate) on_full: FullRingPolicy,
    /// `GPUMEMTRACE_MEMORY`: memory limit of the recorder.
    pub(crate) memory_bytes: u64,
    /// `GPUMEMTRACE_ROTATE`, `GPUMEMTRACE_MAX_TOTAL_SIZE`: when to begin a new part, and how much
    /// to keep.
    pub(crate) rotation: Option<RotationPolicy>,
    /// `GPUMEMTRACE_CLOCK`: `auto` (default) uses the processor's counter where it can be trusted;
    /// `kernel` never does.
    pub(crate) uses_counter: bool,
}

/// Parts per kept size if only the total size is limited.
const PARTS_IN_KEPT: u64 = 8;

/// When a trace begins a new part, and how much of it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RotationPolicy {
    pub(crate) limit: PartLimit,
    /// Approximate limit of all files of the trace together.
    pub(crate) keep_bytes: Option<u64>,
}

impl RotationPolicy {
    /// Returns `None` if the trace is one file.
    pub(crate) fn new(limit: Option<PartLimit>, keep_bytes: Option<u64>) -> Option<Self> {
        let mut limit = limit.or_else(|| keep_bytes.map(|_| PartLimit::default()))?;
        if let Some(keep) = keep_bytes {
            let most = (keep / PARTS_IN_KEPT).max(1);
            limit.bytes = Some(limit.bytes.map_or(most, |bytes| bytes.min(most)));
        }
        Some(Self { limit, keep_bytes })
    }
}

impl RecorderConfig {
    /// Reads the environment. A wrong value prints one line and gives the default.
    pub(crate) fn from_env() -> Self {
        let output = std::env::var_os("GPUMEMTRACE_OUTPUT").filter(|name| !name.is_empty());
        Self { output, ..Self::from_lookup(text_variable) }
    }

    /// Everything but [`Self::output`], which need not be text.
    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let choose = |name: &str, choices: &[&str]| choose(&lookup, name, choices);
        let python = StackConfig { python: true, native: NativeStacks::Owners };
        let native = StackConfig { python: false, native: NativeStacks::All };
        let both = StackConfig { python: true, native: NativeStacks::All };
        let none = StackConfig { python: false, native: NativeStacks::None };
        let place = JobPlace::from_lookup(&lookup);
        Self {
            output: None,
            labels: labels_from_lookup(&lookup, place.job.as_deref()),
            place,
            records_command_line: choose("GPUMEMTRACE_COMMAND_LINE", &["on", "off"]) == 0,
            stacks: [python, native, both, none]
                [choose("GPUMEMTRACE_STACKS", &["python", "native", "both", "none"])],
            depth: depth(&lookup),
            on_full: [FullRingPolicy::Block, FullRingPolicy::Drop]
                [choose("GPUMEMTRACE_ON_FULL", &["block", "drop"])],
            memory_bytes: memory_bytes(&lookup),
            rotation: RotationPolicy::new(
                parse_amount(&lookup, "GPUMEMTRACE_ROTATE", "1GiB, 6h, or 1GiB,6h", PartLimit::parse),
                parse_amount(&lookup, "GPUMEMTRACE_MAX_TOTAL_SIZE", "10GiB", size_arg::parse_bytes),
            ),
            uses_counter: choose("GPUMEMTRACE_CLOCK", &["auto", "kernel"]) == 0,
        }
    }
}

/// Reads `GPUMEMTRACE_TORCH_DETAILS`: whether to attach PyTorch's own tracker, `on` (default) or
/// `off`.
pub fn is_tracker_enabled() -> bool {
    choose(&text_variable, "GPUMEMTRACE_TORCH_DETAILS", &["on", "off"]) == 0
}

/// The value of a variable. `None` if it is unset, or is not UTF-8; the second is printed.
fn text_variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?.into_string();
    if let Err(other) = &value {
        print_diagnostic(&[name, "=", &other.to_string_lossy(), " is not UTF-8 text; ignoring it."]);
    }
    value.ok()
}

fn depth(lookup: &impl Fn(&str) -> Option<String>) -> usize {
    let Some(value) = lookup("GPUMEMTRACE_DEPTH").filter(|value| !value.is_empty()) else { return MAX_DEPTH };
    value.parse().ok().filter(|depth| (1..=MAX_DEPTH).contains(depth)).unwrap_or_else(|| {
        let most = MAX_DEPTH.to_string();
        print_diagnostic(&[
            "GPUMEMTRACE_DEPTH=",
            &value,
            " is not a number from 1 to ",
            &most,
            "; using ",
            &most,
            ".",
        ]);
        MAX_DEPTH
    })
}

fn memory_bytes(lookup: &impl Fn(&str) -> Option<String>) -> u64 {
    let Some(value) = lookup("GPUMEMTRACE_MEMORY").filter(|value| !value.is_empty()) else {
        return DEFAULT_MEMORY_BYTES;
    };
    size_arg::parse_recorder_memory(&value).unwrap_or_else(|| {
        print_diagnostic(&["GPUMEMTRACE_MEMORY=", &value, " is not a size from 32MiB to 1GiB; using 64MiB."]);
        DEFAULT_MEMORY_BYTES
    })
}

fn parse_amount<T>(
    lookup: &impl Fn(&str) -> Option<String>,
    name: &str,
    example: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let value = lookup(name).filter(|value| !value.is_empty())?;
    let amount = parse(&value);
    if amount.is_none() {
        print_diagnostic(&[name, "=", &value, " is not a value such as ", example, "; ignoring it."]);
    }
    amount
}

/// The index of the chosen value; 0 if the variable is unset or none of the choices.
fn choose(lookup: &impl Fn(&str) -> Option<String>, name: &str, choices: &[&str]) -> usize {
    let Some(value) = lookup(name).filter(|value| !value.is_empty()) else { return 0 };
    choices.iter().position(|choice| *choice == value).unwrap_or_else(|| {
        let list = choices.join(", ");
        print_diagnostic(&[name, "=", &value, " is not one of ", &list, "; using ", choices[0], "."]);
        0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> RecorderConfig {
        RecorderConfig::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn unset_variables_give_the_documented_defaults() {
        let config = with(&[]);
        assert_eq!((config.output, config.place), (None, JobPlace::default()));
        assert_eq!((config.on_full, config.records_command_line), (FullRingPolicy::Block, true));
        assert!(!with(&[("GPUMEMTRACE_COMMAND_LINE", "off")]).records_command_line);
        assert!(config.uses_counter && !with(&[("GPUMEMTRACE_CLOCK", "kernel")]).uses_counter);
        assert_eq!(config.stacks, StackConfig { python: true, native: NativeStacks::Owners });
    }

    #[test]
    fn depth_is_limited_to_the_valid_range() {
        assert_eq!(with(&[]).depth, MAX_DEPTH);
        assert_eq!(with(&[("GPUMEMTRACE_DEPTH", "7")]).depth, 7);
        for wrong in ["0", "257", "-1", "deep"] {
            assert_eq!(with(&[("GPUMEMTRACE_DEPTH", wrong)]).depth, MAX_DEPTH, "{wrong}");
        }
    }

    #[test]
    fn rotation_follows_rotate_and_keep() {
        assert_eq!(with(&[]).rotation, None);
        let limit = |pairs: &[(&str, &str)]| with(pairs).rotation.map(|policy| policy.limit.bytes);
        assert_eq!(limit(&[("GPUMEMTRACE_ROTATE", "1MiB")]), Some(Some(1 << 20)));
        assert_eq!(limit(&[("GPUMEMTRACE_ROTATE", "1h")]), Some(None));
        // The kept size must hold several parts, or no part could be dropped.
        assert_eq!(limit(&[("GPUMEMTRACE_MAX_TOTAL_SIZE", "8MiB")]), Some(Some(1 << 20)));
        let both = [("GPUMEMTRACE_MAX_TOTAL_SIZE", "8MiB"), ("GPUMEMTRACE_ROTATE", "1GiB")];
        assert_eq!(limit(&both), Some(Some(1 << 20)));
        assert_eq!(limit(&[("GPUMEMTRACE_ROTATE", "often")]), None);
    }

    #[test]
    fn memory_limit_is_accepted_within_bounds() {
        assert_eq!(with(&[]).memory_bytes, 64 << 20);
        assert_eq!(with(&[("GPUMEMTRACE_MEMORY", "256MiB")]).memory_bytes, 256 << 20);
        for wrong in ["1MiB", "2GiB", "much"] {
            assert_eq!(with(&[("GPUMEMTRACE_MEMORY", wrong)]).memory_bytes, 64 << 20, "{wrong}");
        }
    }

    #[test]
    fn mistyped_value_gives_the_default() {
        let config = with(&[("GPUMEMTRACE_STACKS", "pyhton"), ("GPUMEMTRACE_ON_FULL", "drop")]);
        assert_eq!(config.stacks, StackConfig { python: true, native: NativeStacks::Owners });
        assert_eq!(config.on_full, FullRingPolicy::Drop);
    }
}
