//! `--vary NAME=FIRST..LAST`: an argument of the program, and the values to try.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// An argument with a whole number as its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands::simulate) struct VariedArgument {
    pub(super) name: String,
    first: u64,
    last: u64,
    step: u64,
}

impl VariedArgument {
    /// Parses `batch-size=1..512`, or `batch-size=8..512:8` for multiples.
    pub(in crate::commands::simulate) fn parse(text: &str) -> Result<Self, String> {
        let parsed = || {
            let (name, values) = text.split_once('=')?;
            let (range, step) = values.split_once(':').unwrap_or((values, "1"));
            let (first, last) = range.split_once("..")?;
            let name = name.trim_start_matches('-').to_owned();
            let (first, last, step) = (first.parse().ok()?, last.parse().ok()?, step.parse().ok()?);
            let is_valid = !name.is_empty() && first <= last && step > 0;
            is_valid.then_some(Self { name, first, last, step })
        };
        parsed().ok_or_else(|| "expected a name and a range, such as batch-size=1..512".to_owned())
    }

    /// The number of the last value; the first is 0.
    pub(super) fn last_number(&self) -> u64 {
        (self.last - self.first) / self.step
    }

    pub(super) fn value(&self, number: u64) -> u64 {
        self.first + number * self.step
    }

    /// The number of a value; the opposite of [`value`](Self::value).
    pub(super) fn number_of(&self, value: u64) -> u64 {
        (value - self.first) / self.step
    }

    /// The command with a value. It replaces each `{NAME}`; else the value of `--NAME`, or of
    /// `NAME=` as in Hydra; else `--NAME` is added. Hyphens and underscores are alike.
    pub(super) fn command_with(&self, command: &[OsString], value: u64) -> Vec<OsString> {
        let value = value.to_string();
        let mut changed = command.to_vec();
        let placeholder = format!("{{{}}}", self.name);
        if command.iter().any(|argument| contains(argument, &placeholder)) {
            for argument in &mut changed {
                *argument = replace(argument, &placeholder, &value);
            }
            return changed;
        }
        for (at, argument) in command.iter().enumerate() {
            let bytes = argument.as_bytes();
            let end_of_name = bytes.iter().position(|byte| *byte == b'=');
            let name = &bytes[..end_of_name.unwrap_or(bytes.len())];
            if !self.is_name(name) {
                continue;
            }
            if end_of_name.is_some() {
                changed[at] = OsString::from_vec([name, b"=", value.as_bytes()].concat());
                return changed;
            }
            if name.starts_with(b"-") && at + 1 < command.len() {
                changed[at + 1] = value.into();
                return changed;
            }
        }
        changed.push(format!("--{}", self.name).into());
        changed.push(value.into());
        changed
    }

    /// Whether an argument without its value has this name.
    fn is_name(&self, argument: &[u8]) -> bool {
        let plain = |bytes: &[u8]| -> Vec<u8> {
            bytes.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect()
        };
        let hyphens = argument.iter().take_while(|byte| **byte == b'-').count();
        plain(&argument[hyphens..]) == plain(self.name.as_bytes())
    }
}

fn contains(argument: &OsStr, part: &str) -> bool {
    argument.as_bytes().windows(part.len()).any(|window| window == part.as_bytes())
}

fn replace(argument: &OsStr, part: &str, value: &str) -> OsString {
    let (mut rest, mut out) = (argument.as_bytes(), Vec::new());
    while let Some(at) = rest.windows(part.len()).position(|window| window == part.as_bytes()) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(value.as_bytes());
        rest = &rest[at + part.len()..];
    }
    out.extend_from_slice(rest);
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_parsed() {
        let values = |text: &str| {
            let varied = VariedArgument::parse(text).unwrap();
            (varied.name.clone(), varied.last_number(), varied.value(varied.last_number()))
        };
        assert_eq!(values("batch-size=1..512"), ("batch-size".to_owned(), 511, 512));
        assert_eq!(values("--seq=8..100:8"), ("seq".to_owned(), 11, 96));
        assert_eq!(values("n=3..3").1, 0);
        for text in ["batch", "b=1", "b=2..1", "=1..2", "b=1..x", "b=1..9:0", "b=-1..9"] {
            assert!(VariedArgument::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn value_gets_into_the_command() {
        let command = |text: &str| {
            let varied = VariedArgument::parse("batch-size=1..512").unwrap();
            let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            let changed = varied.command_with(&words, 64);
            changed.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        for (given, expected) in [
            ("python t.py", "python t.py --batch-size 64"),
            ("python t.py --batch-size 8 -v", "python t.py --batch-size 64 -v"),
            ("python t.py --batch_size=8", "python t.py --batch_size=64"),
            ("python t.py -v batch_size=8", "python t.py -v batch_size=64"),
            ("python t.py data.{batch-size} {batch-size}", "python t.py data.64 64"),
            ("python t.py batch-size", "python t.py batch-size --batch-size 64"),
            ("python t.py --batch-size", "python t.py --batch-size --batch-size 64"),
        ] {
            assert_eq!(command(given), expected);
        }
    }
}
