//! Which files a recorder may have written, given the name it was told.
//!
//! Constraint: a name has placeholders that only the recorder can fill, a finished trace is moved aside (`run.1.trace`), and a
//! folder may hold a million other files. Consequence: names alone decide; nothing else in the folder is opened.

use std::path::{Path, PathBuf};

/// A file name as the user gives it: `%p` is a process, `%r` a rank, `%h` a host, `%%` a percent sign.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Where the file is.
    pub(crate) folder: PathBuf,
    file: Vec<Piece>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Char(char),
    Digits,
    Anything,
}

impl Pattern {
    /// Of a full path. `None` where the folder itself has placeholders.
    pub(crate) fn new(path: &Path) -> Option<Self> {
        let folder = path.parent()?.to_owned();
        if folder.to_string_lossy().contains('%') {
            return None;
        }
        Some(Self { folder, file: pieces(&path.file_name()?.to_string_lossy()) })
    }

    /// True for a name that the recorder may have made of this.
    pub(crate) fn makes(&self, name: &str) -> bool {
        let chars: Vec<char> = name.chars().collect();
        let aside: Option<Vec<char>> = without_number(name).map(|name| name.chars().collect());
        fits(&self.file, &chars) || aside.is_some_and(|name| fits(&self.file, &name))
    }
}

fn pieces(name: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut chars = name.chars();
    while let Some(c) = chars.next() {
        match (c, c == '%') {
            (_, false) => pieces.push(Piece::Char(c)),
            (_, true) => match chars.next() {
                Some('p') => pieces.push(Piece::Digits),
                Some('r' | 'h') => pieces.push(Piece::Anything),
                Some('%') | None => pieces.push(Piece::Char('%')),
                Some(other) => pieces.extend([Piece::Char('%'), Piece::Char(other)]),
            },
        }
    }
    pieces
}

/// `run.12.trace` as `run.trace`, `run.12` as `run`.
fn without_number(name: &str) -> Option<String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (stem, extension) = name.rsplit_once('.')?;
    if is_number(extension) {
        return Some(stem.to_owned());
    }
    let (stem, number) = stem.rsplit_once('.')?;
    is_number(number).then(|| format!("{stem}.{extension}"))
}

fn fits(pieces: &[Piece], name: &[char]) -> bool {
    match pieces {
        [] => name.is_empty(),
        [Piece::Char(c), rest @ ..] => name.first() == Some(c) && fits(rest, &name[1..]),
        [Piece::Digits, rest @ ..] => {
            let digits = name.iter().take_while(|c| c.is_ascii_digit()).count();
            (1..=digits).any(|taken| fits(rest, &name[taken..]))
        }
        [Piece::Anything, rest @ ..] => (0..=name.len()).any(|taken| fits(rest, &name[taken..])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_knows_the_names_it_makes_and_no_others() {
        for (pattern, yes, no) in [
            (
                "/x/run.trace",
                &["run.trace", "run.1.trace", "run.4242.trace"][..],
                &["run.x.trace", "data"][..],
            ),
            ("/x/run", &["run", "run.7"], &["run.trace", "runs"]),
            ("/x/%p.rank%r@%h%%", &["12.rank3@node%", "12.rank@%"], &["x.rank3@node%", "12.rank3@node"]),
            ("/x/run.rank%r.trace", &["run.rank3.trace", "run.rank3.1.trace"], &["run.trace"]),
        ] {
            let pattern = Pattern::new(Path::new(pattern)).unwrap();
            assert_eq!(pattern.folder, Path::new("/x"));
            for name in yes {
                assert!(pattern.makes(name), "{name}");
            }
            for name in no {
                assert!(!pattern.makes(name), "{name}");
            }
        }
        assert_eq!(Pattern::new(Path::new("/x/%h/run.trace")), None);
    }
}
