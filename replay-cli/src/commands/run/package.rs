//! The Python package for programs that do not have it, so that `import gpumemtrace` works in them.
//!
//! The command may lie in another environment than the program, or alone. So the package is part of
//! this binary, and is written into a folder. The recording library shows that folder to each
//! Python process (`interpose/src/lifecycle/python_startup.rs`), which looks there last: a package
//! of the program's environment is preferred.
//!
//! Not in it: `gpumemtrace.sql`, which needs DuckDB and reads exports, not programs.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The variable that names the folder. The recording library reads it.
pub(super) const VARIABLE: &str = "GPUMEMTRACE_PACKAGE";

/// The text of a file of the package.
macro_rules! python {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../python/gpumemtrace/", $file))
    };
}
const STARTUP_FILE: &str = python!("_run/sitecustomize.py");
/// The installed package reads its version from the metadata of its installation.
const VERSION_FILE: &str = concat!(
    "\"\"\"The version of the command that wrote this package.\"\"\"\n\n__version__ = \"",
    env!("CARGO_PKG_VERSION"),
    "\"\n"
);
const PACKAGE_FILES: &[(&str, &str)] = &[
    ("__init__.py", python!("__init__.py")),
    ("__main__.py", python!("__main__.py")),
    ("_allocator.py", python!("_allocator.py")),
    ("_command.py", python!("_command.py")),
    ("_holders/__init__.py", python!("_holders/__init__.py")),
    ("_holders/candidates.py", python!("_holders/candidates.py")),
    ("_holders/frames.py", python!("_holders/frames.py")),
    ("_holders/import_hook.py", python!("_holders/import_hook.py")),
    ("_holders/intervals.py", python!("_holders/intervals.py")),
    ("_holders/library.py", python!("_holders/library.py")),
    ("_holders/names.py", python!("_holders/names.py")),
    ("_holders/paths.py", python!("_holders/paths.py")),
    ("_holders/returns.py", python!("_holders/returns.py")),
    ("_holders/safe_access.py", python!("_holders/safe_access.py")),
    ("_holders/safe_point.py", python!("_holders/safe_point.py")),
    ("_holders/scan.py", python!("_holders/scan.py")),
    ("_holders/search.py", python!("_holders/search.py")),
    ("_holders/text.py", python!("_holders/text.py")),
    ("_holders/torch_objects.py", python!("_holders/torch_objects.py")),
    ("_holders/triggers.py", python!("_holders/triggers.py")),
    ("_notebook.py", python!("_notebook.py")),
    ("_platform.py", python!("_platform.py")),
    ("_recording/__init__.py", python!("_recording/__init__.py")),
    ("_recording/lifecycle.py", python!("_recording/lifecycle.py")),
    ("_recording/markers.py", python!("_recording/markers.py")),
    ("_recording/mps_memory.py", python!("_recording/mps_memory.py")),
    ("_recording/torch_snapshot.py", python!("_recording/torch_snapshot.py")),
    ("_reports/__init__.py", python!("_reports/__init__.py")),
    ("_reports/holders.py", python!("_reports/holders.py")),
    ("_reports/oom.py", python!("_reports/oom.py")),
    ("_reports/output_file.py", python!("_reports/output_file.py")),
    ("_reports/page.py", python!("_reports/page.py")),
    ("_reports/profile.py", python!("_reports/profile.py")),
    ("_reports/report.py", python!("_reports/report.py")),
    ("_reports/sites.py", python!("_reports/sites.py")),
    ("_reports/sizes.py", python!("_reports/sizes.py")),
    ("_text.py", python!("_text.py")),
    ("huggingface.py", python!("huggingface.py")),
    ("lightning.py", python!("lightning.py")),
    ("pytest_plugin.py", python!("pytest_plugin.py")),
    ("_version.py", VERSION_FILE),
];

/// The temporary folder; dropping it removes the folder.
pub(super) struct PackageFolder {
    /// The absolute path without symbolic links, as Python writes it.
    path: PathBuf,
    _folder: TempDir,
}

impl PackageFolder {
    /// Writes the package into a new folder, in the layout of `pip install --target`.
    pub(super) fn create() -> io::Result<Self> {
        // Python imports what lies here, so no other user may write to it.
        let private = Permissions::from_mode(0o700);
        let folder =
            tempfile::Builder::new().prefix("gpumemtrace-package-").permissions(private).tempdir()?;
        let path = folder.path().canonicalize()?;
        for inside in ["startup", "bin", "gpumemtrace"] {
            fs::create_dir(path.join(inside))?;
        }
        fs::write(path.join("startup/sitecustomize.py"), STARTUP_FILE)?;
        // Reports of the running program start this command.
        symlink(std::env::current_exe()?, path.join("bin/gpumemtrace"))?;
        for (name, text) in PACKAGE_FILES {
            let file = path.join("gpumemtrace").join(name);
            fs::create_dir_all(file.parent().unwrap_or(&path))?;
            fs::write(file, text)?;
        }
        Ok(Self { path, _folder: folder })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Python files of a folder and those below, without what the program does not import.
    fn list_files(folder: &Path, inside: &str, files: &mut Vec<String>) {
        for entry in fs::read_dir(folder.join(inside)).unwrap() {
            let entry = entry.unwrap();
            let name = Path::new(inside).join(entry.file_name()).display().to_string();
            let is_left_out = ["sql", "_simulation", "_run", "_holders/site"].contains(&name.as_str());
            if entry.path().is_dir() && !is_left_out {
                list_files(folder, &name, files);
            } else if Path::new(&name).extension().is_some_and(|extension| extension == "py") {
                files.push(name);
            }
        }
    }

    #[test]
    fn every_file_is_embedded() {
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/gpumemtrace");
        let mut there = Vec::new();
        list_files(Path::new(package), "", &mut there);
        let mut known: Vec<&str> = PACKAGE_FILES.iter().map(|(name, _)| *name).collect();
        there.sort();
        known.sort_unstable();
        assert_eq!(there, known);
    }

    #[test]
    fn folder_is_laid_out_as_an_installation_and_is_removed() {
        let package = PackageFolder::create().unwrap();
        let path = package.path().to_owned();
        for file in ["startup/sitecustomize.py", "gpumemtrace/_holders/scan.py", "bin/gpumemtrace"] {
            assert!(path.join(file).is_file(), "{file}");
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        drop(package);
        assert!(!path.exists());
    }
}
