//! Where the decision looks: names, links and contents of files.
//!
//! Constraint: what macOS does with its own programs is to be tried on machines that have none of them. Consequence: whoever decides
//! is given the files ([`FileSystem`]); the disk is one way to have them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use object::ReadCache;

use super::executable::ExecutableKind;

/// Files, as the system finds them.
pub trait FileSystem {
    /// The file that this path leads to, over all links; `None` if there is none.
    fn behind_links(&self, path: &Path) -> Option<PathBuf>;
    /// Its mode, if it is a regular file.
    fn mode(&self, path: &Path) -> Option<u32>;
    /// What it is; `None` if that cannot be told.
    fn program(&self, path: &Path) -> Option<ExecutableKind>;
}

/// Those of this machine.
pub struct HostFileSystem;

impl FileSystem for HostFileSystem {
    fn behind_links(&self, path: &Path) -> Option<PathBuf> {
        path.canonicalize().ok()
    }

    fn mode(&self, path: &Path) -> Option<u32> {
        fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|facts| facts.mode())
    }

    fn program(&self, path: &Path) -> Option<ExecutableKind> {
        // Asked before it is opened: opening a pipe waits.
        self.mode(path)?;
        ExecutableKind::read(&ReadCache::new(File::open(path).ok()?))
    }
}

/// Where a shell would find the program of this name.
pub(super) fn find(name: &Path, here: &Path, search: &OsStr, files: &impl FileSystem) -> Option<PathBuf> {
    if name.as_os_str().as_encoded_bytes().contains(&b'/') {
        return Some(here.join(name));
    }
    let is_program = |path: &PathBuf| files.mode(path).is_some_and(|mode| mode & 0o111 != 0);
    std::env::split_paths(search).map(|folder| here.join(folder).join(name)).find(is_program)
}
