//! Paths for people: normalised and as short as possible.
//!
//! Tables print paths through [`short_file`]. Sentences of the analyses contain full paths, because
//! the analyses know neither the current folder nor the disk; [`shorten_paths_in`] applies the same
//! rule to them.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use gpumemtrace_format::source_path::with_slashes;

use crate::terminal::escape::escape_text;

/// Folders of installed packages. A path starts behind them.
const LIBRARIES: [&str; 2] = ["/site-packages/", "/dist-packages/"];

/// A normalised path: from the package folder on, else relative to the current directory if it lies
/// there.
pub(crate) fn short_file(file: &str) -> String {
    shorten_file(file, std::env::current_dir().ok().as_deref())
}

fn shorten_file(file: &str, here: Option<&Path>) -> String {
    let file = &*normalize_path(file);
    if let Some(path) = path_in_package(file) {
        return path.to_owned();
    }
    let relative = here.and_then(|here| Path::new(file).strip_prefix(here).ok());
    let relative = relative.filter(|relative| !relative.as_os_str().is_empty());
    relative.map_or_else(|| file.to_owned(), |relative| relative.display().to_string())
}

/// The part of a path behind the folder of installed packages; `None` for other paths.
pub(crate) fn path_in_package(file: &str) -> Option<&str> {
    let with_slashes = with_slashes(file);
    let behind = |folder: &&str| Some(with_slashes.rfind(*folder)? + folder.len());
    LIBRARIES.iter().find_map(behind).map(|at| &file[at..])
}

/// A command line with short paths: `/venv/bin/python /work/train.py` becomes `python train.py`
/// in `/work`.
pub(crate) fn shorten_command(arguments: &[String]) -> String {
    let here = std::env::current_dir().ok();
    let shorten = |(at, argument): (usize, &String)| match argument.rsplit_once('/') {
        Some((_, name)) if at == 0 && argument.starts_with('/') && !name.is_empty() => name.to_owned(),
        Some(_) if argument.starts_with('/') => shorten_file(argument, here.as_deref()),
        _ => argument.clone(),
    };
    arguments.iter().enumerate().map(shorten).collect::<Vec<_>>().join(" ")
}

/// A sentence of the report with each path as [`short_file`] prints it.
pub(crate) fn shorten_paths_in(text: &str) -> String {
    let text = shorten_windows_paths(text);
    escape_text(&shorten_sentence(&text, std::env::current_dir().ok().as_deref()))
}

/// A sentence in which each path of Windows with a line number begins behind the folder of
/// installed packages, if it has one.
fn shorten_windows_paths(text: &str) -> Cow<'_, str> {
    const ROOT: &str = ":\\";
    if !text.contains(ROOT) {
        return Cow::Borrowed(text);
    }
    let (mut rest, mut out) = (text, String::with_capacity(text.len()));
    while let Some(root) = rest.find(ROOT) {
        let drive =
            root.checked_sub(1).filter(|at| rest.as_bytes()[*at].is_ascii_alphabetic()).unwrap_or(root);
        let behind = root + ROOT.len();
        let end = rest[behind..].find(':').map_or(behind, |colon| behind + colon);
        let path = &rest[drive..end];
        out.push_str(&rest[..drive]);
        out.push_str(path_in_package(path).unwrap_or(path));
        rest = &rest[end..];
    }
    Cow::Owned(out + rest)
}

fn shorten_sentence(text: &str, here: Option<&Path>) -> String {
    // The current folder may have spaces in its name, so it is compared before words are split.
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
        // A path ends at the colon before its line number.
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

/// Removes `.` and `..` from a path without looking at the disk: `a/../b` becomes `b`. A `..`
/// beyond the start stays. If a folder before `..` is a link, the result may name another file.
pub(crate) fn normalize_path(path: &str) -> Cow<'_, str> {
    let is_dots = |part: &str| matches!(part, "." | "..");
    if !path.split('/').any(is_dots) {
        return Cow::Borrowed(path);
    }
    let mut normal = PathBuf::new();
    for part in Path::new(path).components() {
        let can_pop = matches!(normal.components().next_back(), Some(Component::Normal(_)));
        match part {
            Component::CurDir => {}
            Component::ParentDir if can_pop => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    Cow::Owned(normal.display().to_string())
}

/// [`normalize_path`], unless that is another file on this machine. For paths that users may open.
pub(crate) fn straighten_path(path: &str) -> String {
    let normal = normalize_path(path);
    let is_same = || Some(Path::new(path).canonicalize().ok()? == Path::new(&*normal).canonicalize().ok()?);
    if *normal != *path && is_same() == Some(true) { normal.into_owned() } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_removed_without_looking_at_the_disk() {
        for (path, normal) in [
            ("tests/hf_trainer/../../s/hf_trainer.py", "s/hf_trainer.py"),
            ("/work/./a/../train.py", "/work/train.py"),
            ("/work/a/b/../../../c.py", "/c.py"),
            ("../train.py", "../train.py"),
            ("a/../../../train.py", "../../train.py"),
            ("/../train.py", "/../train.py"),
            ("./train.py", "train.py"),
            ("/work/a..b/...py", "/work/a..b/...py"),
            ("/work//train.py", "/work//train.py"),
            ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ] {
            assert_eq!(normalize_path(path), normal);
        }
    }

    #[test]
    fn file_is_normalised_before_it_is_shortened() {
        let here = Some(Path::new("/home/me/project"));
        for (file, short) in [
            ("/home/me/project/run/../train.py", "train.py"),
            ("/home/me/project/run/../../lib/train.py", "/home/me/lib/train.py"),
            ("/venv/bin/../lib/site-packages/torch/x/../nn.py", "torch/nn.py"),
            (r"C:\env\Lib\site-packages\torch\nn.py", r"torch\nn.py"),
        ] {
            assert_eq!(shorten_file(file, here), short);
        }
    }

    #[test]
    fn command_is_shown_with_short_paths() {
        let command = |arguments: &[&str]| {
            shorten_command(&arguments.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>())
        };
        let here = std::env::current_dir().unwrap();
        let script = here.join("run/../train.py").display().to_string();
        assert_eq!(command(&["/venv/bin/python", &script, "--lr", "1/3"]), "python train.py --lr 1/3");
        assert_eq!(command(&["./bench", "-o", "a/b", "/data/x"]), "./bench -o a/b /data/x");
        assert_eq!(command(&["/"]), "/");
    }

    #[test]
    fn sentence_shortens_files_as_tables_do() {
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
        let windows = r"at C:\env\Lib\site-packages\t\y.py:3 (D:\work\train.py:5 in f())";
        assert_eq!(shorten_windows_paths(windows), r"at t\y.py:3 (D:\work\train.py:5 in f())");
        assert_eq!(shorten_windows_paths(r"see C:\env"), r"see C:\env");
        let two = "see /srv/x y and /v/site-packages/t/y.py:3";
        assert_eq!(shorten_sentence(two, here), "see /srv/x y and t/y.py:3");
        assert_eq!(shorten_sentence("a /x/y.py:1 b", None), "a /x/y.py:1 b");
    }

    #[test]
    fn path_is_straightened_only_to_the_same_file() {
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
        assert_eq!(of("a/b/../none.so"), at("a/b/../none.so"), "the file does not exist");
        for path in ["/lib/libc.so.6", "../x", "/..", "a..b/x"] {
            assert_eq!(straighten_path(path), path);
        }
    }
}
