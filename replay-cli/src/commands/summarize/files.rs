//! The files that the user's paths stand for: themselves, or the traces and summaries in a folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::exit::UnreadableInput;
use crate::trace::parts::read_part;

/// Deepest folder below the user's. Links to folders are not followed.
const MAX_DEPTH: usize = 16;

/// The files of these paths, each once, in order of their paths.
pub(super) fn find_files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let mut found = Vec::new();
            add_folder(path, MAX_DEPTH, &mut found)?;
            let found = last_parts(found);
            if found.is_empty() {
                let why = format!("{} has no file named *.trace or *.summary", path.display());
                return Err(UnreadableInput(why).into());
            }
            files.extend(found);
        } else {
            files.push(path.clone());
        }
    }
    files.sort();
    files.dedup();
    Ok(files)
}

fn add_folder(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let unreadable = || format!("{} cannot be listed", folder.display());
    for entry in std::fs::read_dir(folder).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        let (path, kind) = (entry.path(), entry.file_type().with_context(unreadable)?);
        if kind.is_dir() && depth > 0 {
            add_folder(&path, depth - 1, found)?;
        } else if !kind.is_dir() && is_named_like_one(&path) {
            found.push(path);
        }
    }
    Ok(())
}

fn is_named_like_one(path: &Path) -> bool {
    let is = |wanted: &str| path.extension().is_some_and(|extension| extension == wanted);
    let is_stacks_file =
        path.file_stem().is_some_and(|stem| Path::new(stem).extension().is_some_and(|it| it == "stacks"));
    (is("trace") && !is_stacks_file) || is("summary")
}

/// Of a trace in several files, the last one stands for all.
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
    files
}
