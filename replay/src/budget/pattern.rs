//! Which lines a budget is for.
//!
//! Definition. `FILE`, `FILE:LINE`, `FILE:FIRST-LAST`, `FILE:FUNCTION` or `FUNCTION`. A file fits
//! from any component of its path on (`model.py` and `net/model.py` fit `/work/net/model.py`); so
//! does a shared library, for native code. `*` stands for anything, `?` for one character. What is
//! done in the backward pass for a line fits as the line does.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Deserializer};

use crate::report::{Site, StackFrame};

/// A pattern that selects call sites.
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
    /// As it is written.
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.to_owned() }
    }

    /// True for a line that it is for.
    pub(crate) fn fits(&self, site: &Site) -> bool {
        self.is_at([site.file.as_deref(), site.module.as_deref()], site.line, site.function.as_deref())
    }

    /// True for a frame of such a line.
    pub(crate) fn fits_frame(&self, frame: &StackFrame) -> bool {
        self.is_at([frame.file.as_deref(), frame.module.as_deref()], frame.line, frame.function.as_deref())
    }

    fn is_at(&self, files: [Option<&str>; 2], at: Option<u32>, function: Option<&str>) -> bool {
        let pattern = &*self.text;
        let is_file = |pattern: &str| files.into_iter().flatten().any(|file| is_tail(pattern, file));
        let is_function = |pattern: &str| function.is_some_and(|function| is_like(pattern, function));
        if is_file(pattern) || is_function(pattern) {
            return true;
        }
        // Names of native functions have colons of their own.
        pattern.match_indices(':').any(|(colon, _)| {
            let (file, within) = (&pattern[..colon], &pattern[colon + 1..]);
            let is_within = match lines(within) {
                Some(lines) => at.is_some_and(|line| lines.contains(&line)),
                None => is_function(within),
            };
            is_within && is_file(file)
        })
    }
}

fn lines(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
}

/// True for a path that ends in what fits, from a component on.
fn is_tail(pattern: &str, path: &str) -> bool {
    let begins = path.match_indices('/').map(|(at, _)| at + 1);
    std::iter::once(0).chain(begins).any(|at| is_like(pattern, &path[at..]))
}

/// Wildcards; in time proportional to the product of both lengths.
fn is_like(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // After the last star: where the pattern goes on, and how much of the text the star has taken.
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
