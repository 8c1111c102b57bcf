//! Where `libgpumemtrace.so` (`.dylib` on macOS) is: the library that belongs to this command.
//!
//! Constraint: the two come from a build (one folder), from a tree with `bin` and `lib`, or from a Python wheel, which puts the command
//! among the scripts and the library into the package; and a folder of Pythons may hold several versions. Consequence: nothing
//! needs to be set, and of packages that lie side by side the one with our version is taken before any other.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::exit::Refused;
use crate::launch::platform::System;

/// Of the library's folder inside a folder of packages.
const IN_PACKAGES: &str = "gpumemtrace/lib";

/// The library that `GPUMEMTRACE_LIB` names, else the one that came with this command.
pub(crate) fn find_library() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("GPUMEMTRACE_LIB") {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(|error| {
            Refused(format!("GPUMEMTRACE_LIB names {}, which cannot be used: {error}", path.display())).into()
        });
    }
    let executable = std::env::current_exe().context("this executable cannot be found")?;
    // On macOS it is the path that it was called by, which may be a link from elsewhere.
    let executable = executable.canonicalize().unwrap_or(executable);
    let folder = executable.parent().unwrap_or(Path::new("."));
    find_from(folder, System::HERE).ok_or_else(|| {
        Refused(format!(
            "{} is neither beside {}, nor in ../lib from there, nor in a Python package gpumemtrace there; \
             set GPUMEMTRACE_LIB to it",
            System::HERE.library(),
            executable.display()
        ))
        .into()
    })
}

/// Refuses a library that the variable of this system's loader cannot name: it would say so and start the program without it, or, on
/// macOS, not at all.
pub(crate) fn check_preloadable(library: &Path, system: System) -> anyhow::Result<()> {
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| system.separators().contains(byte)) {
        let (shown, variable) = (library.display(), system.preload());
        let what = if system.separators().contains(&b' ') { "a space or a colon" } else { "a colon" };
        return Err(Refused(format!(
            "{shown}: {variable} cannot hold a path with {what}; move the library, or copy it and set GPUMEMTRACE_LIB to the copy"
        ))
        .into());
    }
    Ok(())
}

fn find_from(folder: &Path, system: System) -> Option<PathBuf> {
    let places = [folder.join(system.library()), folder.join("../lib").join(system.library())];
    let near = places.iter().find_map(|place| place.canonicalize().ok());
    near.or_else(|| find_in_packages(&folder.join(".."), system))
}

/// The library of a Python package that was installed below `prefix`.
fn find_in_packages(prefix: &Path, system: System) -> Option<PathBuf> {
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
    let library = |packages: &Path| packages.join(IN_PACKAGES).join(system.library()).canonicalize().ok();
    let found = folders.iter().filter_map(|folder| Some((is_our_version(folder), library(folder)?)));
    // Any that has our version is as good as another; where none has, some library is better than none.
    found.max_by_key(|(is_ours, _)| *is_ours).map(|(_, library)| library)
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

    fn found_from(prefix: &Path, system: System) -> Option<PathBuf> {
        fs::create_dir_all(prefix.join("bin")).unwrap();
        find_from(&prefix.join("bin"), system)
    }

    #[test]
    fn each_way_to_install_is_found() {
        for place in [
            "bin",
            "lib",
            "lib/python3.8/site-packages/gpumemtrace/lib",
            "lib64/python3.14/site-packages/gpumemtrace/lib",
            "lib/python3/dist-packages/gpumemtrace/lib",
            "local/lib/python3.12/dist-packages/gpumemtrace/lib",
            "gpumemtrace/lib",
        ] {
            for system in [System::Linux, System::MacOs] {
                let prefix = tempfile::tempdir().unwrap();
                assert_eq!(found_from(prefix.path(), system), None);
                for other in ["libgpumemtrace.a", "libgpumemtrace.rlib"] {
                    put(&prefix.path().join(place).join(other));
                }
                assert_eq!(found_from(prefix.path(), system), None);
                let library = put(&prefix.path().join(place).join(system.library()));
                assert_eq!(found_from(prefix.path(), system), Some(library), "{place}");
            }
        }
    }

    #[test]
    fn what_the_loader_would_take_for_two_files_is_refused() {
        let check = |folder: &str, system: System| {
            check_preloadable(&Path::new(folder).join(system.library()), system)
                .map_err(|error| error.to_string())
        };
        let (linux, mac) = (System::Linux, System::MacOs);
        for (folder, system) in [("/opt/venv-1/lib", linux), ("/opt/venv-1/lib", mac), ("/opt/my venv", mac)]
        {
            assert_eq!(check(folder, system), Ok(()));
        }
        for (folder, system) in [("/opt/my venv", linux), ("/opt/a:b", linux), ("/opt/a:b", mac)] {
            let error = check(folder, system).unwrap_err();
            assert!(error.starts_with(folder) && error.contains("set GPUMEMTRACE_LIB"), "{error}");
            assert!(error.contains(system.preload()), "{error}");
        }
    }

    #[test]
    fn of_several_versions_ours_is_taken() {
        let prefix = tempfile::tempdir().unwrap();
        let of = |python: &str, version: &str| {
            let packages = prefix.path().join("lib").join(python).join("site-packages");
            fs::create_dir_all(packages.join(format!("gpumemtrace-{version}.dist-info"))).unwrap();
            put(&packages.join(IN_PACKAGES).join(System::HERE.library()))
        };
        of("python3.10", "0.0.1");
        let ours = of("python3.11", env!("CARGO_PKG_VERSION"));
        of("python3.9", "99.0.0");
        assert_eq!(found_from(prefix.path(), System::HERE), Some(ours));
    }
}
