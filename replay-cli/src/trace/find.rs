//! The files that the user's paths stand for: themselves, those in a folder, or those that match a
//! pattern such as `traces/**/*.rank*.trace`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern};
use walkdir::WalkDir;

use crate::exit::{UnreadableInput, UsageError};
use crate::terminal::escape::escape_text;
use crate::terminal::stderr::print_message;
use crate::trace::parts::read_part;

/// The extension of the traces in a folder.
pub(crate) const TRACES: &[&str] = &["trace"];
/// Those of the files that `ranks` reads.
pub(crate) const TRACES_AND_SUMMARIES: &[&str] = &["trace", "summary"];

/// `*` stands for a part of a name, not for a part of a path.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// The files of these paths, each once, in the order of the arguments, and those of a folder or a
/// pattern in order of their paths. Files in folders are those with one of the extensions.
///
/// # Errors
///
/// A folder has no such file or cannot be listed, or a pattern matches nothing. A path without a
/// file is not an error here. A folder below that cannot be listed is returned like a file: reading
/// it says why.
pub(crate) fn find_files(paths: &[PathBuf], extensions: &[&str]) -> Result<Vec<PathBuf>, UnreadableInput> {
    let mut files = Vec::new();
    for path in paths {
        match SearchPattern::parse(path) {
            Some(pattern) => files.extend(find_matches(path, &pattern, extensions)?),
            None if path.is_dir() => files.extend(find_in_folder(path, extensions)?),
            None => files.push(path.clone()),
        }
    }
    let mut known = BTreeSet::new();
    files.retain(|file| known.insert(file.clone()));
    Ok(files)
}

/// The user's paths. Without any, the newest trace in the current folder, which is named on stderr.
///
/// # Errors
///
/// The folder has no trace, or cannot be listed.
pub(crate) fn named_or_newest(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    if !paths.is_empty() {
        return Ok(paths.to_vec());
    }
    let is_trace = |path: &Path| has_extension(path, TRACES[0]) && !is_side_file(path);
    let found = walk(Path::new(""), 1)?.into_iter();
    let found = found.filter(|(path, kind)| *kind == FoundKind::File && is_trace(path));
    let found = last_parts(found.map(|(path, _)| path).collect());
    let modified = |path: &Path| path.metadata().and_then(|facts| facts.modified()).ok();
    // The newest events of a running program are in the ring file.
    let changed = |path: &&PathBuf| modified(path).max(modified(&path.with_added_extension("ring")));
    let none = "no trace is named, and this folder has none: gpumemtrace run -- python train.py records one";
    let newest = found.iter().max_by_key(changed).ok_or_else(|| UsageError(none.to_owned()))?;
    let name = escape_text(&newest.display().to_string());
    let others =
        if found.len() > 1 { format!(", the newest of {} here", found.len()) } else { String::new() };
    print_message(format_args!("gpumemtrace: reading {name}{others}"));
    Ok(vec![newest.clone()])
}

fn find_in_folder(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, UnreadableInput> {
    let mut found = Vec::new();
    add_folder(folder, extensions, &mut found)?;
    if found.is_empty() {
        let names: Vec<String> = extensions.iter().map(|extension| format!("*.{extension}")).collect();
        let why = format!("{} has no file named {}", folder.display(), names.join(" or "));
        return Err(UnreadableInput(why));
    }
    Ok(last_parts(found))
}

fn add_folder(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) -> Result<(), UnreadableInput> {
    for (path, kind) in walk(folder, usize::MAX)? {
        let is_wanted = || extensions.iter().any(|wanted| has_extension(&path, wanted));
        match kind {
            FoundKind::Folder => {}
            FoundKind::File if is_side_file(&path) || !is_wanted() => {}
            FoundKind::File | FoundKind::Unlisted => found.push(path),
        }
    }
    Ok(())
}

/// What lies in a folder.
#[derive(Clone, Copy, PartialEq)]
enum FoundKind {
    File,
    Folder,
    /// A folder that cannot be listed.
    Unlisted,
}

/// What lies at most `depth` folders deep. Links to folders are not followed.
fn walk(folder: &Path, depth: usize) -> Result<Vec<(PathBuf, FoundKind)>, UnreadableInput> {
    let root = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = WalkDir::new(root).min_depth(1).max_depth(depth).into_iter();
    let named = |path: &Path| folder.join(path.strip_prefix(root).unwrap_or(path));
    let entries = entries.map(|entry| match entry {
        Ok(entry) => {
            let kind = if entry.file_type().is_dir() { FoundKind::Folder } else { FoundKind::File };
            Ok((named(entry.path()), kind))
        }
        Err(error) if error.depth() > 0 && error.path().is_some() => {
            Ok((named(error.path().unwrap_or(root)), FoundKind::Unlisted))
        }
        Err(error) => {
            let path = error.path().unwrap_or(root).display().to_string();
            let why = error.io_error().map_or_else(|| error.to_string(), ToString::to_string);
            Err(UnreadableInput(format!("{path} cannot be listed: {why}")))
        }
    });
    entries.collect()
}

/// True for a path with wildcards that does not exist itself.
pub(crate) fn is_pattern(path: &Path) -> bool {
    SearchPattern::parse(path).is_some()
}

/// A pattern, split before the first part that has a wildcard.
struct SearchPattern {
    folder: PathBuf,
    rest: Result<Pattern, glob::PatternError>,
    depth: usize,
}

impl SearchPattern {
    /// `None` without a wildcard. What exists is no pattern, also if it has a `*` in its name.
    fn parse(path: &Path) -> Option<Self> {
        let parts: Vec<Component<'_>> = path.components().collect();
        let is_pattern = |at: &usize| {
            let has_wildcard = parts[*at].as_os_str().to_string_lossy().contains(['*', '?', '[']);
            has_wildcard && std::fs::symlink_metadata(parts[..=*at].iter().collect::<PathBuf>()).is_err()
        };
        let first = (0..parts.len()).find(is_pattern)?;
        let rest: PathBuf = parts[first..].iter().collect();
        let is_deep = parts[first..].iter().any(|part| part.as_os_str() == "**");
        Some(Self {
            folder: parts[..first].iter().collect(),
            rest: Pattern::new(rest.to_str()?),
            depth: if is_deep { usize::MAX } else { parts.len() - first },
        })
    }
}

/// The files that match the pattern, and those in folders that match it.
fn find_matches(
    path: &Path,
    SearchPattern { folder, rest, depth }: &SearchPattern,
    extensions: &[&str],
) -> Result<Vec<PathBuf>, UnreadableInput> {
    let refuse = |why: String| UnreadableInput(format!("{} {why}", path.display()));
    let rest =
        rest.as_ref().map_err(|error| refuse(format!("does not exist, and is no pattern: {error}")))?;
    let mut found = Vec::new();
    for (path, kind) in walk(folder, *depth)? {
        let below = path.strip_prefix(folder).unwrap_or(&path);
        match kind {
            FoundKind::Unlisted if may_match_below(below, rest) => found.push(path),
            _ if !rest.matches_path_with(below, MATCHING) => {}
            FoundKind::Folder if add_folder(&path, extensions, &mut found).is_err() => found.push(path),
            FoundKind::File if !is_side_file(&path) => found.push(path),
            FoundKind::Folder | FoundKind::File | FoundKind::Unlisted => {}
        }
    }
    if found.is_empty() {
        return Err(refuse("matches no file".to_owned()));
    }
    Ok(last_parts(found))
}

/// Whether the pattern may match what lies in this folder, by the parts that the two have.
fn may_match_below(folder: &Path, pattern: &Pattern) -> bool {
    let parts = pattern.as_str().split('/').zip(folder.iter());
    let known = parts.take_while(|(wanted, _)| *wanted != "**");
    known.into_iter().all(|(wanted, name)| {
        let part = Pattern::new(wanted);
        part.is_ok_and(|part| part.matches_with(&name.to_string_lossy(), MATCHING))
    })
}

pub(crate) fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|extension| extension == wanted)
}

/// True for files that are read with their trace: its stacks and its ring file.
pub(crate) fn is_side_file(path: &Path) -> bool {
    let is_stacks_file = path.file_stem().is_some_and(|stem| has_extension(Path::new(stem), "stacks"));
    has_extension(path, "ring") || has_extension(path, "trace") && is_stacks_file
}

/// Of a trace in several files, the last one stands for all. In order of the paths.
fn last_parts(found: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut last: BTreeMap<String, (u64, PathBuf)> = BTreeMap::new();
    let mut files = Vec::new();
    for path in found {
        match read_part(&path) {
            Some((trace_id, number)) => {
                let kept = last.entry(trace_id).or_insert_with(|| (number, path.clone()));
                if number > kept.0 {
                    *kept = (number, path);
                }
            }
            None => files.push(path),
        }
    }
    files.extend(last.into_values().map(|(_, path)| path));
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder_with(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        folder
    }

    fn find(folder: &Path, paths: &[&str]) -> Result<Vec<String>, String> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| folder.join(path)).collect();
        let found = find_files(&paths, TRACES).map_err(|UnreadableInput(why)| why)?;
        let short = |path: &PathBuf| path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
        Ok(found.iter().map(short).collect())
    }

    const FILES: &[&str] = &[
        "b.trace",
        "a/run.rank0.trace",
        "a/run.rank1.trace",
        "a/run.rank1.trace.ring",
        "a/run.0123abcd.stacks.trace",
        "a/deep/run.rank2.trace",
        "a/deep/run.summary",
        "a/deep/snapshot.pickle",
        "x*y.trace",
        "x[1]",
        "run[2]/a.trace",
    ];

    #[test]
    fn folders_stand_for_the_traces_in_them() {
        let folder = folder_with(FILES);
        let in_a = ["a/deep/run.rank2.trace", "a/run.rank0.trace", "a/run.rank1.trace"];
        assert_eq!(find(folder.path(), &["a"]).unwrap(), in_a);
        // In the order of the arguments, and each file once.
        let in_order = find(folder.path(), &["b.trace", "a/run.rank1.trace", "a", "b.trace"]).unwrap();
        assert_eq!(in_order, ["b.trace", "a/run.rank1.trace", in_a[0], in_a[1]]);
        fs::create_dir(folder.path().join("empty")).unwrap();
        assert!(
            find(folder.path(), &["a", "empty"]).unwrap_err().ends_with("empty has no file named *.trace")
        );
    }

    #[test]
    fn patterns_stand_for_the_files_that_match() {
        let folder = folder_with(FILES);
        // A pattern that followed links would not end here.
        for name in ["loop", "loop2"] {
            std::os::unix::fs::symlink(folder.path(), folder.path().join("a").join(name)).unwrap();
        }
        let in_a = ["a/deep/run.rank2.trace", "a/run.rank0.trace", "a/run.rank1.trace"];
        for (pattern, files) in [
            ("a/*.trace", &in_a[1..]),
            ("a/run.rank[0-2].trace", &in_a[1..]),
            ("a/run.rank?.trace*", &in_a[1..]),
            ("**/*.rank*.trace", &in_a),
            ("*/**/run.rank2.trace", &in_a[..1]),
            // A folder that matches stands for its traces.
            ("[ab]", &in_a),
            ("*/deep", &in_a[..1]),
            ("a/**/*.pickle", &["a/deep/snapshot.pickle"]),
            // What exists is taken as it is.
            ("x*y.trace", &["x*y.trace"]),
            ("x[1]", &["x[1]"]),
            ("run[2]/*.trace", &["run[2]/a.trace"]),
        ] {
            assert_eq!(find(folder.path(), &[pattern]).unwrap(), files, "{pattern}");
        }
        for (pattern, why) in [
            ("a/*.rank9.trace", "matches no file"),
            ("none/*.trace", "cannot be listed: "),
            ("a/**.trace", "does not exist, and is no pattern: "),
        ] {
            assert!(find(folder.path(), &[pattern]).unwrap_err().contains(why), "{pattern}");
        }
        assert_eq!(find(folder.path(), &["none.trace"]).unwrap(), ["none.trace"], "refused when it is read");
    }
}
