//! Paths of source files as text.
//!
//! A trace is read on another machine than it was recorded on, and a snapshot of PyTorch may come
//! from Windows. So rules about paths do not use those of the reader's system. Reports show a path
//! as it was recorded.

use std::borrow::Cow;

/// True for a path of Windows: `C:\x\train.py`, `\\host\share\train.py`, `x\train.py`. On other
/// systems a backslash in a relative path is a character of a name, which is rare enough to ignore.
pub fn is_windows_path(path: &str) -> bool {
    path.contains('\\') && !path.starts_with(['/', '<'])
}

/// The path with `/` between its components. Positions of bytes stay the same.
pub fn with_slashes(path: &str) -> Cow<'_, str> {
    if is_windows_path(path) { Cow::Owned(path.replace('\\', "/")) } else { Cow::Borrowed(path) }
}

/// The last component of a path.
pub fn file_name(path: &str) -> &str {
    let last = with_slashes(path).rfind('/');
    last.map_or(path, |at| &path[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_of_both_systems_are_separated() {
        for (path, name, slashes) in [
            (r"C:\me\train.py", "train.py", "C:/me/train.py"),
            (r"C:\me/src\train.py", "train.py", "C:/me/src/train.py"),
            (r"\\host\share\a.py", "a.py", "//host/share/a.py"),
            (r"src\a.py", "a.py", "src/a.py"),
            (r"/srv/odd\name.py", r"odd\name.py", r"/srv/odd\name.py"),
            ("/srv/a.py", "a.py", "/srv/a.py"),
            (r"<eval\1>", r"<eval\1>", r"<eval\1>"),
            ("a.py", "a.py", "a.py"),
            ("", "", ""),
        ] {
            assert_eq!((file_name(path), &*with_slashes(path)), (name, slashes), "{path}");
        }
    }
}
