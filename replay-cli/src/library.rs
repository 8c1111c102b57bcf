//! Where `libgpumemtrace.so` is: the library that belongs to this command.
//!
//! Constraint: the two come from a build (one folder), from a tree with `bin` and `lib`, or from a Python wheel, which puts the command
//! among the scripts and the library into the package; and a folder of Pythons may hold several versions. Consequence: nothing
//! needs to be set, and of packages that lie side by side the one with our version is taken before any other.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::exit::Refused;

const LIBRARY: &str = "libgpumemtrace.so";
/// Of the library inside a folder of packages.
const IN_PACKAGES: &str = "gpumemtrace/lib/libgpumemtrace.so";

/// The library that `GPUMEMTRACE_LIB` names, else the one that came with this command.
pub(crate) fn find_library() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("GPUMEMTRACE_LIB") {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(|error| {
            Refused(format!("GPUMEMTRACE_LIB names {}, which cannot be used: {error}", path.display())).into()
        });
    }
    let executable = std::env::current_exe().context("this executable cannot be found")?;
    let folder = executable.parent().unwrap_or(Path::new("."));
    find_from(folder).ok_or_else(|| {
        Refused(format!(
            "{LIBRARY} is neither beside {}, nor in ../lib from there, nor in a Python package gpumemtrace there; \
             set GPUMEMTRACE_LIB to it",
            executable.display()
        ))
        .into()
    })
}

/// Refuses a library that `LD_PRELOAD` cannot name: the loader would say so and start the program without it.
pub(crate) fn check_preloadable(library: &Path) -> anyhow::Result<()> {
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        let shown = library.display();
        return Err(Refused(format!(
            "{shown}: LD_PRELOAD cannot hold a path with a space or a colon; move the library, or copy it and set GPUMEMTRACE_LIB to the copy"
        ))
        .into());
    }
    Ok(())
}

fn find_from(folder: &Path) -> Option<PathBuf> {
    let places = [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    places.iter().find_map(|place| place.canonicalize().ok()).or_else(|| find_in_packages(&folder.join("..")))
}

/// The library of a Python package that was installed below `prefix`.
fn find_in_packages(prefix: &Path) -> Option<PathBuf> {
    // `pip install --target` puts packages into the prefix itself.
    let mut folders = vec![prefix.to_owned()];
    for lib in ["lib", "lib64", "local/lib"] {
        let pythons = fs::read_dir(prefix.join(lib)).into_iter().flatten().flatten();
        folders.extend(
            pythons
                .flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.path().join(name))),
        );
    }
    folders.sort();
    let found = folders.iter().filter_map(|folder| Some((is_our_version(folder), library_of(folder)?)));
    // Any that has our version is as good as another; where none has, some library is better than none.
    found.max_by_key(|(is_ours, _)| *is_ours).map(|(_, library)| library)
}

fn library_of(packages: &Path) -> Option<PathBuf> {
    packages.join(IN_PACKAGES).canonicalize().ok()
}

fn is_our_version(packages: &Path) -> bool {
    packages.join(concat!("gpumemtrace-", env!("CARGO_PKG_VERSION"), ".dist-info")).is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(file: &Path) -> PathBuf {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, b"").unwrap();
        file.canonicalize().unwrap()
    }

    fn found_from(prefix: &Path) -> Option<PathBuf> {
        fs::create_dir_all(prefix.join("bin")).unwrap();
        find_from(&prefix.join("bin"))
    }

    #[test]
    fn each_way_to_install_is_found() {
        for place in [
            "bin/libgpumemtrace.so",
            "lib/libgpumemtrace.so",
            "lib/python3.8/site-packages/gpumemtrace/lib/libgpumemtrace.so",
            "lib64/python3.14/site-packages/gpumemtrace/lib/libgpumemtrace.so",
            "lib/python3/dist-packages/gpumemtrace/lib/libgpumemtrace.so",
            "local/lib/python3.12/dist-packages/gpumemtrace/lib/libgpumemtrace.so",
            "gpumemtrace/lib/libgpumemtrace.so",
        ] {
            let prefix = tempfile::tempdir().unwrap();
            assert_eq!(found_from(prefix.path()), None);
            let library = put(&prefix.path().join(place));
            assert_eq!(found_from(prefix.path()), Some(library), "{place}");
        }
    }

    #[test]
    fn what_the_loader_would_take_for_two_files_is_refused() {
        assert!(check_preloadable(Path::new("/opt/venv-1/lib/libgpumemtrace.so")).is_ok());
        for folder in ["/opt/my venv", "/opt/a:b"] {
            let error = check_preloadable(&Path::new(folder).join(LIBRARY)).unwrap_err().to_string();
            assert!(error.starts_with(folder) && error.contains("set GPUMEMTRACE_LIB"), "{error}");
        }
    }

    #[test]
    fn of_several_versions_ours_is_taken() {
        let prefix = tempfile::tempdir().unwrap();
        let of = |python: &str, version: &str| {
            let packages = prefix.path().join("lib").join(python).join("site-packages");
            fs::create_dir_all(packages.join(format!("gpumemtrace-{version}.dist-info"))).unwrap();
            put(&packages.join(IN_PACKAGES))
        };
        of("python3.10", "0.0.1");
        let ours = of("python3.11", env!("CARGO_PKG_VERSION"));
        of("python3.9", "99.0.0");
        assert_eq!(found_from(prefix.path()), Some(ours));
    }
}
