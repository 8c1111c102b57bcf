//! What the user asked for, in environment variables, because nothing else reaches a preloaded library.
//!
//! Constraint: a mistyped value must not stop the program nor be ignored silently. Consequence: one line on stderr names
//! the variable, what it may be, and what is used instead.

use gpumemtrace_format::amount::{self, PartLimit};

use crate::parts::Wanted;
use crate::say::say;
use crate::stack_cache::MAX_DEPTH;

/// What the recorder needs at most, where nothing else was asked for.
const DEFAULT_MEMORY_BYTES: u64 = 64 << 20;

/// Which call sites are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stacks {
    /// Python frames.
    pub(crate) python: bool,
    /// Native frames.
    pub(crate) native: NativeStacks,
}

/// Which events get a native stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NativeStacks {
    /// None.
    None,
    /// Driver calls that hand something out: they tell whose memory it is.
    Owners,
    /// All.
    All,
}

/// What a thread does when its ring is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnFull {
    /// Waits for the writer.
    Block,
    /// Drops the event and counts it.
    Drop,
}

/// Everything that can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    /// `GPUMEMTRACE_OUTPUT`: file name pattern; `%p` pid, `%r` rank, `%h` host.
    pub(crate) output: String,
    /// `GPUMEMTRACE_STACKS`: `python` (default), `native`, `both`, `none`.
    pub(crate) stacks: Stacks,
    /// `GPUMEMTRACE_DEPTH`: most frames of a stack, 1 to [`MAX_DEPTH`] (default); the outermost ones are left out.
    pub(crate) depth: usize,
    /// `GPUMEMTRACE_ON_FULL`: `block` (default), `drop`.
    pub(crate) on_full: OnFull,
    /// `GPUMEMTRACE_MEMORY`: what the recorder may need at most.
    pub(crate) memory_bytes: u64,
    /// `GPUMEMTRACE_ROTATE`, `GPUMEMTRACE_MAX_TOTAL_SIZE`: whether the trace is written in parts.
    pub(crate) parts: Option<Wanted>,
    /// `GPUMEMTRACE_CLOCK`: `auto` (default), `kernel`: times by the processor's counter where that can be trusted, or never.
    pub(crate) uses_counter: bool,
}

impl Config {
    /// Reads the environment.
    pub(crate) fn from_env() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let choose = |name: &str, choices: &[&str]| choose(&lookup, name, choices);
        let python = Stacks { python: true, native: NativeStacks::Owners };
        let native = Stacks { python: false, native: NativeStacks::All };
        let both = Stacks { python: true, native: NativeStacks::All };
        let none = Stacks { python: false, native: NativeStacks::None };
        Self {
            output: lookup("GPUMEMTRACE_OUTPUT").filter(|name| !name.is_empty()).unwrap_or_else(|| {
                if lookup("RANK").is_some_and(|rank| !rank.is_empty()) {
                    "run.rank%r.trace"
                } else {
                    "run.trace"
                }
                .to_owned()
            }),
            stacks: [python, native, both, none]
                [choose("GPUMEMTRACE_STACKS", &["python", "native", "both", "none"])],
            depth: depth(&lookup),
            on_full: [OnFull::Block, OnFull::Drop][choose("GPUMEMTRACE_ON_FULL", &["block", "drop"])],
            memory_bytes: memory_bytes(&lookup),
            parts: Wanted::new(
                amount(&lookup, "GPUMEMTRACE_ROTATE", "1GiB, 6h, or 1GiB,6h", PartLimit::parse),
                amount(&lookup, "GPUMEMTRACE_MAX_TOTAL_SIZE", "10GiB", amount::bytes),
            ),
            uses_counter: choose("GPUMEMTRACE_CLOCK", &["auto", "kernel"]) == 0,
        }
    }
}

/// `GPUMEMTRACE_TRACKER`: whether PyTorch's own tracker is to be attached: `on` (default), `off`.
pub fn wants_tracker() -> bool {
    choose(&|name| std::env::var(name).ok(), "GPUMEMTRACE_TRACKER", &["on", "off"]) == 0
}

fn depth(lookup: &impl Fn(&str) -> Option<String>) -> usize {
    let Some(value) = lookup("GPUMEMTRACE_DEPTH").filter(|value| !value.is_empty()) else { return MAX_DEPTH };
    value.parse().ok().filter(|depth| (1..=MAX_DEPTH).contains(depth)).unwrap_or_else(|| {
        let most = MAX_DEPTH.to_string();
        say(&["GPUMEMTRACE_DEPTH=", &value, " is no number from 1 to ", &most, "; using ", &most, "."]);
        MAX_DEPTH
    })
}

fn memory_bytes(lookup: &impl Fn(&str) -> Option<String>) -> u64 {
    let Some(value) = lookup("GPUMEMTRACE_MEMORY").filter(|value| !value.is_empty()) else {
        return DEFAULT_MEMORY_BYTES;
    };
    amount::recorder_memory(&value).unwrap_or_else(|| {
        say(&["GPUMEMTRACE_MEMORY=", &value, " is no amount from 32MiB to 1GiB; using 64MiB."]);
        DEFAULT_MEMORY_BYTES
    })
}

fn amount<T>(
    lookup: &impl Fn(&str) -> Option<String>,
    name: &str,
    example: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let value = lookup(name).filter(|value| !value.is_empty())?;
    let amount = parse(&value);
    if amount.is_none() {
        say(&[name, "=", &value, " is no amount such as ", example, "; going on without it."]);
    }
    amount
}

/// The place of the chosen value; 0 if nothing, or nothing sensible, was chosen.
fn choose(lookup: &impl Fn(&str) -> Option<String>, name: &str, choices: &[&str]) -> usize {
    let Some(value) = lookup(name).filter(|value| !value.is_empty()) else { return 0 };
    choices.iter().position(|choice| *choice == value).unwrap_or_else(|| {
        let list = choices.join(", ");
        say(&[name, "=", &value, " is none of ", &list, "; using ", choices[0], "."]);
        0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Config {
        Config::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_set_is_the_documented_default() {
        let config = with(&[]);
        assert_eq!((config.output.as_str(), config.on_full), ("run.trace", OnFull::Block));
        assert!(config.uses_counter && !with(&[("GPUMEMTRACE_CLOCK", "kernel")]).uses_counter);
        assert_eq!(config.stacks, Stacks { python: true, native: NativeStacks::Owners });
    }

    #[test]
    fn a_rank_names_its_own_file_unless_the_user_names_one() {
        assert_eq!(with(&[("RANK", "3")]).output, "run.rank%r.trace");
        assert_eq!(with(&[("RANK", "")]).output, "run.trace");
        assert_eq!(with(&[("RANK", "3"), ("GPUMEMTRACE_OUTPUT", "x-%p")]).output, "x-%p");
    }

    #[test]
    fn stacks_may_be_limited() {
        assert_eq!(with(&[]).depth, MAX_DEPTH);
        assert_eq!(with(&[("GPUMEMTRACE_DEPTH", "7")]).depth, 7);
        for wrong in ["0", "257", "-1", "deep"] {
            assert_eq!(with(&[("GPUMEMTRACE_DEPTH", wrong)]).depth, MAX_DEPTH, "{wrong}");
        }
    }

    #[test]
    fn parts_are_made_where_the_user_wants_them() {
        assert_eq!(with(&[]).parts, None);
        let limit = |pairs: &[(&str, &str)]| with(pairs).parts.map(|parts| parts.limit.bytes);
        assert_eq!(limit(&[("GPUMEMTRACE_ROTATE", "1MiB")]), Some(Some(1 << 20)));
        assert_eq!(limit(&[("GPUMEMTRACE_ROTATE", "1h")]), Some(None));
        // What is kept must consist of several parts, or there would be nothing to drop.
        assert_eq!(limit(&[("GPUMEMTRACE_MAX_TOTAL_SIZE", "8MiB")]), Some(Some(1 << 20)));
        let both = [("GPUMEMTRACE_MAX_TOTAL_SIZE", "8MiB"), ("GPUMEMTRACE_ROTATE", "1GiB")];
        assert_eq!(limit(&both), Some(Some(1 << 20)));
        assert_eq!(limit(&[("GPUMEMTRACE_ROTATE", "often")]), None);
    }

    #[test]
    fn memory_may_be_chosen_within_bounds() {
        assert_eq!(with(&[]).memory_bytes, 64 << 20);
        assert_eq!(with(&[("GPUMEMTRACE_MEMORY", "256MiB")]).memory_bytes, 256 << 20);
        for wrong in ["1MiB", "2GiB", "much"] {
            assert_eq!(with(&[("GPUMEMTRACE_MEMORY", wrong)]).memory_bytes, 64 << 20, "{wrong}");
        }
    }

    #[test]
    fn a_mistyped_value_falls_back() {
        let config = with(&[("GPUMEMTRACE_STACKS", "pyhton"), ("GPUMEMTRACE_ON_FULL", "drop")]);
        assert_eq!(config.stacks, Stacks { python: true, native: NativeStacks::Owners });
        assert_eq!(config.on_full, OnFull::Drop);
    }
}
