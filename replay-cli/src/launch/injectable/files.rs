//! File access of the injection check, as a trait.
//!
//! Tests provide a made-up Mac through [`FileSystem`]; the command uses [`HostFileSystem`].

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use object::ReadCache;

use super::executable::ExecutableKind;

/// The files that the injection check reads.
pub trait FileSystem {
    /// The path with all links resolved; `None` if there is no such file.
    fn behind_links(&self, path: &Path) -> Option<PathBuf>;
    /// The mode of a regular file; `None` for anything else.
    fn mode(&self, path: &Path) -> Option<u32>;
    /// The kind of executable; `None` if the file cannot be read or is malformed.
    fn program(&self, path: &Path) -> Option<ExecutableKind>;
}

/// The files of this machine.
pub struct HostFileSystem;

impl FileSystem for HostFileSystem {
    fn behind_links(&self, path: &Path) -> Option<PathBuf> {
        path.canonicalize().ok()
    }

    fn mode(&self, path: &Path) -> Option<u32> {
        fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|facts| facts.mode())
    }

    fn program(&self, path: &Path) -> Option<ExecutableKind> {
        // Checked before opening it, because opening a pipe blocks.
        self.mode(path)?;
        ExecutableKind::read(&ReadCache::new(File::open(path).ok()?))
    }
}

/// The path at which a shell finds a program of this name.
pub(super) fn find(name: &Path, here: &Path, search: &OsStr, files: &impl FileSystem) -> Option<PathBuf> {
    if name.as_os_str().as_encoded_bytes().contains(&b'/') {
        return Some(here.join(name));
    }
    let is_program = |path: &PathBuf| files.mode(path).is_some_and(|mode| mode & 0o111 != 0);
    std::env::split_paths(search).map(|folder| here.join(folder).join(name)).find(is_program)
}
