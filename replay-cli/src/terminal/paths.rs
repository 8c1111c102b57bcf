//! Paths for people: no longer than their reader needs, and never those of another file.
//!
//! Constraint: sentences about lines are made with the analyses, which know neither the current folder nor the disk. Consequence: what a
//! list shows and what a sentence says of the same line is shortened here, by one rule.

use std::path::{Component, Path, PathBuf};

use crate::terminal::marks::sanitize;

/// Folders below which all packages lie: who reads knows where.
const LIBRARIES: [&str; 2] = ["/site-packages/", "/dist-packages/"];

/// Relative to the current directory, or from the library folder on.
pub(crate) fn short_file(file: &str) -> String {
    shorten_file(file, std::env::current_dir().ok().as_deref())
}

fn shorten_file(file: &str, here: Option<&Path>) -> String {
    if let Some((_, rest)) = LIBRARIES.iter().find_map(|folder| file.rsplit_once(folder)) {
        return rest.to_owned();
    }
    let relative = here.and_then(|here| Path::new(file).strip_prefix(here).ok());
    relative.map_or_else(|| file.to_owned(), |relative| relative.display().to_string())
}

/// A sentence of the report, as far as it names files: each as [`short_file`] has it.
pub(crate) fn shorten_paths_in(text: &str) -> String {
    sanitize(&shorten_sentence(text, std::env::current_dir().ok().as_deref()))
}

fn shorten_sentence(text: &str, here: Option<&Path>) -> String {
    // The current folder may have spaces in its name, and so is no word.
    let here = here.map(|here| format!("{}/", here.display())).filter(|here| here.len() > 1);
    let mut rest = text;
    let mut out = String::with_capacity(text.len());
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        if !(out.is_empty() || out.ends_with([' ', '('])) {
            out.push('/');
            rest = &from[1..];
            continue;
        }
        let from = here.as_deref().and_then(|here| from.strip_prefix(here)).unwrap_or(from);
        // A path ends where its line begins; if a library's folder is in it, that is not needed.
        let end = from.find(':').unwrap_or(0);
        let library = LIBRARIES.iter().find_map(|folder| Some(from[..end].rfind(folder)? + folder.len()));
        let is_one_path = |at: &usize| !from[..*at].contains(" /") && !from[..*at].contains("; ");
        let from = &from[library.filter(is_one_path).unwrap_or(0)..];
        let taken = usize::from(from.starts_with('/'));
        out.push_str(&from[..taken]);
        rest = &from[taken..];
    }
    out + rest
}

/// Without `..`, where that is the same file on this machine: a folder before it may be a link.
pub(crate) fn straighten_path(path: &str) -> String {
    let mut straight = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir
                if matches!(straight.components().next_back(), Some(Component::Normal(_))) =>
            {
                straight.pop();
            }
            Component::CurDir => {}
            part => straight.push(part),
        }
    }
    let is_same = || Some(Path::new(path).canonicalize().ok()? == straight.canonicalize().ok()?);
    if path.contains("/..") && is_same() == Some(true) {
        straight.display().to_string()
    } else {
        path.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_files_as_lists_do() {
        let here = Some(Path::new("/home/me/my project"));
        let library = "/home/me/my project/.venv/lib/python3.12/site-packages/torch/nn/linear.py";
        for file in ["/home/me/my project/train.py", "/srv/other.py", library, "/home/me/my project2/a.py"] {
            let of = |file: &str| format!("do not keep what {file}:41 in Net.f() keeps (4.00 MiB by then)");
            assert_eq!(shorten_sentence(&of(file), here), of(&shorten_file(file, here)), "{file}");
            let first = format!("{file}:41 leaks; and ({file}:7 in f(), its backward)");
            let short = shorten_file(file, here);
            let expected = format!("{short}:41 leaks; and ({short}:7 in f(), its backward)");
            assert_eq!(shorten_sentence(&first, here), expected);
        }
        for text in [
            "1/2 of it, and/or 3 MiB/s",
            "no path",
            "/",
            "grow (pool.cpp:41) /",
            "ends in /home/me/my project/",
        ] {
            let kept = text.replace("/home/me/my project/", "");
            assert_eq!(shorten_sentence(text, here), kept);
        }
        let two = "see /srv/x y and /v/site-packages/t/y.py:3";
        assert_eq!(shorten_sentence(two, here), "see /srv/x y and t/y.py:3");
        assert_eq!(shorten_sentence("a /x/y.py:1 b", None), "a /x/y.py:1 b");
    }

    #[test]
    fn a_detour_is_left_out_where_it_leads_to_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(root.join("far/away")).unwrap();
        std::os::unix::fs::symlink(root.join("far/away"), root.join("a/link")).unwrap();
        for file in ["lib.so", "a/lib.so", "far/lib.so"] {
            std::fs::write(root.join(file), "").unwrap();
        }
        let of = |path: &str| straighten_path(&root.join(path).display().to_string());
        let at = |path: &str| root.join(path).display().to_string();
        assert_eq!(of("a/b/../lib.so"), at("a/lib.so"));
        assert_eq!(of("a/b/../../lib.so"), at("lib.so"));
        assert_eq!(of("a/link/../lib.so"), at("a/link/../lib.so"), "that is far/lib.so");
        assert_eq!(of("a/b/../none.so"), at("a/b/../none.so"), "not there: nobody knows");
        for path in ["/lib/libc.so.6", "../x", "/..", "a..b/x"] {
            assert_eq!(straighten_path(path), path);
        }
    }
}
