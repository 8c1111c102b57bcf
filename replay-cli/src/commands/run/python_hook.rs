//! Runs Python code of this binary at the start of the command's Python.
//!
//! The command's Python may not find the gpumemtrace package, or may find another version of it. So
//! the files are part of this binary. They are written to a temporary folder on `PYTHONPATH`, where
//! Python runs `sitecustomize`. That file starts the package beside it, and then imports the
//! `sitecustomize` it hides.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::TempDir;

const STARTUP_FILE: (&str, &str) = (
    "sitecustomize.py",
    include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../python/gpumemtrace/_holders/site/sitecustomize.py"
    )),
);

/// The temporary folder; dropping it removes the folder.
#[derive(Debug)]
pub(in crate::commands) struct PythonHook {
    folder: TempDir,
}

impl PythonHook {
    /// Writes a package into a new folder. Its `triggers.install()` runs when Python starts.
    pub(in crate::commands) fn create(package: &str, files: &[(&str, &str)]) -> io::Result<Self> {
        // Python imports what lies here, so no other user may write to it.
        let private = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("gpumemtrace-python-").permissions(private).tempdir()?;
        let inside = folder.path().join(package);
        fs::create_dir(&inside)?;
        fs::write(folder.path().join(STARTUP_FILE.0), STARTUP_FILE.1)?;
        for (name, text) in files {
            fs::write(inside.join(name), text)?;
        }
        Ok(Self { folder })
    }

    /// The folder, which only this user can enter.
    pub(in crate::commands) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The value of `PYTHONPATH` with this folder first.
    pub(in crate::commands) fn python_path(&self, old: Option<OsString>) -> OsString {
        let mut path = self.folder.path().as_os_str().to_owned();
        if let Some(old) = old.filter(|old| !old.is_empty()) {
            path.push(":");
            path.push(old);
        }
        path
    }
}
