//! Matches file names that the recorder may have made from `--output`.
//!
//! The name has placeholders that only the recorder fills in, and the recorder may move a finished
//! trace aside (`run.1.trace`). Names alone decide, so no other file in the folder is opened.

use std::path::{Path, PathBuf};

/// A file name with placeholders: `%p` process ID, `%r` rank, `%h` host, `%j` job, `%%` percent
/// sign.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutputPattern {
    pub(crate) folder: PathBuf,
    tokens: Vec<PatternToken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatternToken {
    Char(char),
    Digits,
    Anything,
}

impl OutputPattern {
    /// Parses an absolute path. `None` if its folder has placeholders.
    pub(crate) fn new(path: &Path) -> Option<Self> {
        let folder = path.parent()?.to_owned();
        if folder.to_string_lossy().contains('%') {
            return None;
        }
        Some(Self { folder, tokens: parse_tokens(&path.file_name()?.to_string_lossy()) })
    }

    /// True for a name that the recorder may have made from this pattern.
    pub(crate) fn matches(&self, name: &str) -> bool {
        if is_companion(name) {
            return false;
        }
        let chars: Vec<char> = name.chars().collect();
        let aside: Option<Vec<char>> = strip_number(name).map(|name| name.chars().collect());
        match_tokens(&self.tokens, &chars) || aside.is_some_and(|name| match_tokens(&self.tokens, &name))
    }
}

fn parse_tokens(name: &str) -> Vec<PatternToken> {
    let mut tokens = Vec::new();
    let mut chars = name.chars();
    while let Some(c) = chars.next() {
        match (c, c == '%') {
            (_, false) => tokens.push(PatternToken::Char(c)),
            (_, true) => match chars.next() {
                Some('p') => tokens.push(PatternToken::Digits),
                Some('r' | 'h' | 'j') => tokens.push(PatternToken::Anything),
                Some('%') | None => tokens.push(PatternToken::Char('%')),
                Some(other) => tokens.extend([PatternToken::Char('%'), PatternToken::Char(other)]),
            },
        }
    }
    tokens
}

/// True for `run.0a1b2c3d.part1.trace` and `run.0a1b2c3d.stacks.trace`, which belong to the trace
/// in another file.
fn is_companion(name: &str) -> bool {
    let words: Vec<&str> = name.split('.').collect();
    words.windows(2).any(|pair| {
        let is_id = pair[0].len() == 8 && pair[0].bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = pair[1].strip_prefix("part").unwrap_or_default();
        let is_part = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_id && (is_part || pair[1] == "stacks")
    })
}

/// Turns `run.12.trace` into `run.trace` and `run.12` into `run`. `None` without a number. The
/// recorder adds a random part, `run.12-0a1b2c3d.trace`, if another process has the same ID.
fn strip_number(name: &str) -> Option<String> {
    let is_number = |text: &str| {
        let (number, random) = text.split_once('-').unwrap_or((text, "00000000"));
        let is_digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_digits && random.len() == 8 && random.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let (stem, extension) = name.rsplit_once('.')?;
    if is_number(extension) {
        return Some(stem.to_owned());
    }
    let (stem, number) = stem.rsplit_once('.')?;
    is_number(number).then(|| format!("{stem}.{extension}"))
}

fn match_tokens(tokens: &[PatternToken], name: &[char]) -> bool {
    match tokens {
        [] => name.is_empty(),
        [PatternToken::Char(c), rest @ ..] => name.first() == Some(c) && match_tokens(rest, &name[1..]),
        [PatternToken::Digits, rest @ ..] => {
            let digits = name.iter().take_while(|c| c.is_ascii_digit()).count();
            (1..=digits).any(|taken| match_tokens(rest, &name[taken..]))
        }
        [PatternToken::Anything, rest @ ..] => {
            (0..=name.len()).any(|taken| match_tokens(rest, &name[taken..]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_its_own_names_only() {
        for (pattern, yes, no) in [
            (
                "/x/run.trace",
                &["run.trace", "run.1.trace", "run.4242.trace", "run.42-0a1b2c3d.trace"][..],
                &["run.x.trace", "run.42-.trace", "run.0a1b2c3d.part1.trace", "data"][..],
            ),
            ("/x/run", &["run", "run.7"], &["run.trace", "runs"]),
            ("/x/%p.rank%r@%h%%", &["12.rank3@node%", "12.rank@%"], &["x.rank3@node%", "12.rank3@node"]),
            ("/x/run.rank%r.trace", &["run.rank3.trace", "run.rank3.1.trace"], &["run.trace"]),
            (
                "/x/run.%h.trace",
                &["run.36_2.rank3.trace", "run.node1.4242.trace", "run.a.stacks.trace"],
                &["run.trace", "run.rank3.0a1b2c3d.part12.trace", "run.0a1b2c3d.stacks.trace"],
            ),
        ] {
            let pattern = OutputPattern::new(Path::new(pattern)).unwrap();
            assert_eq!(pattern.folder, Path::new("/x"));
            for name in yes {
                assert!(pattern.matches(name), "{name}");
            }
            for name in no {
                assert!(!pattern.matches(name), "{name}");
            }
        }
        assert_eq!(OutputPattern::new(Path::new("/x/%h/run.trace")), None);
    }
}
