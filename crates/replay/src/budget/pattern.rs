//! Patterns for lines of code: `FILE`, `FILE:LINE`, `FILE:FIRST-LAST`, `FILE:FUNCTION` or
//! `FUNCTION`.
//!
//! A file matches by its whole path or any tail of it that starts at a component: `model.py` and
//! `net/model.py` match `/work/net/model.py`. For native code, the path of the shared library
//! matches as well. `*` stands for any characters, `?` for one. Work of the backward pass on
//! behalf of a line matches like the line. In paths of Windows and in patterns for them, `/` and
//! `\` are the same.
//!
//! One match costs O(pattern x path). `budget::tests::patterns_match_files_lines_and_functions`
//! lists examples.

use std::fmt;
use std::ops::RangeInclusive;

use gpumemtrace_format::source_path::with_slashes;
use serde::{Deserialize, Deserializer};

use crate::report::{Site, StackFrame};

/// A pattern that selects lines of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SitePattern {
    text: String,
}

impl fmt::Display for SitePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for SitePattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Err(serde::de::Error::custom(
                "`match` is empty; give a file, FILE:LINE, FILE:FUNCTION or a function",
            ));
        }
        Ok(Self { text })
    }
}

impl SitePattern {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.to_owned() }
    }

    pub(crate) fn matches_site(&self, site: &Site) -> bool {
        self.matches([site.file.as_deref(), site.module.as_deref()], site.line, site.function.as_deref())
    }

    pub(crate) fn matches_frame(&self, frame: &StackFrame) -> bool {
        self.matches([frame.file.as_deref(), frame.module.as_deref()], frame.line, frame.function.as_deref())
    }

    /// `files`: the source file and the shared library.
    fn matches(&self, files: [Option<&str>; 2], line: Option<u32>, function: Option<&str>) -> bool {
        let pattern = &*self.text;
        let matches_file =
            |pattern: &str| files.into_iter().flatten().any(|file| matches_tail(pattern, file));
        let matches_function =
            |pattern: &str| function.is_some_and(|function| matches_wildcards(pattern, function));
        if matches_file(pattern) || matches_function(pattern) {
            return true;
        }
        // Names of native functions contain colons, so any colon may be the separator.
        pattern.match_indices(':').any(|(colon, _)| {
            let (file, within) = (&pattern[..colon], &pattern[colon + 1..]);
            let matches_within = match parse_lines(within) {
                Some(lines) => line.is_some_and(|line| lines.contains(&line)),
                None => matches_function(within),
            };
            matches_within && matches_file(file)
        })
    }
}

/// Parses `LINE` or `FIRST-LAST`.
fn parse_lines(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
}

/// True if the path matches, or a tail of it that starts at a component.
fn matches_tail(pattern: &str, path: &str) -> bool {
    let (pattern, path) = (&*with_slashes(pattern), &*with_slashes(path));
    let component_starts = path.match_indices('/').map(|(at, _)| at + 1);
    std::iter::once(0).chain(component_starts).any(|at| matches_wildcards(pattern, &path[at..]))
}

/// Matches `*` and `?` in time proportional to the product of both lengths.
fn matches_wildcards(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // For the last star: where the pattern continues, and where the star's match ends in the text.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    (p, t) = (after, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}
