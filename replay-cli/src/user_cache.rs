//! The folder of this user's caches.
//!
//! What lies in it is believed, and `simulate` even runs it. So a cache is used only if no other
//! user can change it: it and all folders above it belong to this user or to root, and no other
//! user may write to them. In a folder with the sticky bit, such as `/tmp`, others cannot replace
//! what they do not own.

use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// A folder below `XDG_CACHE_HOME` or `~/.cache`. `None` with `GPUMEMTRACE_CACHE=off`, without a
/// home folder, or if another user may change the folder.
pub(crate) fn user_cache(name: &str) -> Option<PathBuf> {
    find_user_cache(name)?.ok()
}

/// As [`user_cache`], with the reason if another user may change the folder.
pub(crate) fn find_user_cache(name: &str) -> Option<Result<PathBuf, UntrustedPath>> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if set("GPUMEMTRACE_CACHE").is_some_and(|value| value == "off") {
        return None;
    }
    let caches = set("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = caches.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
    Some(trusted_path(&caches.join("gpumemtrace").join(name)))
}

/// A file or folder that another user may change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UntrustedPath {
    path: PathBuf,
    why: &'static str,
}

impl fmt::Display for UntrustedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.why)
    }
}

/// The path without links, if no other user can change what it names. It need not exist; then
/// nothing else is there until this user creates it.
pub(crate) fn trusted_path(path: &Path) -> Result<PathBuf, UntrustedPath> {
    let (mut existing, mut missing) = (path, Vec::new());
    let resolved = loop {
        match existing.canonicalize() {
            Ok(resolved) => break resolved,
            Err(_) => match (existing.parent(), existing.file_name()) {
                (Some(parent), Some(name)) => {
                    missing.push(name);
                    existing = parent;
                }
                _ => return Err(UntrustedPath { path: path.to_owned(), why: "cannot be found" }),
            },
        }
    };
    for part in resolved.ancestors() {
        let refused = |why| UntrustedPath { path: part.to_owned(), why };
        let facts = fs::symlink_metadata(part).map_err(|_| refused("cannot be examined"))?;
        let user = rustix::process::geteuid().as_raw();
        if facts.uid() != user && facts.uid() != 0 {
            return Err(refused("belongs to another user"));
        }
        let mode = facts.permissions().mode();
        // Many systems give each user a group with the number of the user.
        let is_own_group = facts.gid() == facts.uid();
        let is_writable = mode & 0o002 != 0 || mode & 0o020 != 0 && !is_own_group;
        let is_sticky = mode & 0o1000 != 0 && facts.is_dir();
        if is_writable && !is_sticky {
            return Err(refused("can be written by other users"));
        }
    }
    Ok(missing.iter().rev().fold(resolved, |path, name| path.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn folder_that_others_can_change_is_not_trusted() {
        let above = tempfile::tempdir().unwrap();
        let above = above.path().canonicalize().unwrap();
        let folder = above.join("cache");
        assert_eq!(trusted_path(&folder.join("new")), Ok(folder.join("new")), "created by this user");
        fs::create_dir_all(folder.join("torch")).unwrap();
        assert_eq!(trusted_path(&folder.join("torch")), Ok(folder.join("torch")));
        set_mode(&folder, 0o777);
        let refused = trusted_path(&folder.join("torch")).unwrap_err();
        assert_eq!(refused.to_string(), format!("{} can be written by other users", folder.display()));
        set_mode(&folder, 0o1777);
        assert_eq!(trusted_path(&folder.join("torch")), Ok(folder.join("torch")), "as in /tmp");
        set_mode(&folder, 0o755);
        fs::write(folder.join("torch/lib.so"), "").unwrap();
        set_mode(&folder.join("torch/lib.so"), 0o666);
        assert!(trusted_path(&folder.join("torch/lib.so")).is_err());
        std::os::unix::fs::symlink(&folder, above.join("link")).unwrap();
        assert_eq!(trusted_path(&above.join("link/torch")), Ok(folder.join("torch")));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&folder, Some(65534), None).unwrap();
            let refused = trusted_path(&folder.join("torch")).unwrap_err();
            assert_eq!(refused.to_string(), format!("{} belongs to another user", folder.display()));
        }
    }
}
