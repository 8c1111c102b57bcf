//! Where `libgpumemtrace.so` (`.dylib` on macOS) is: the library that belongs to this command.
//!
//! Constraint: the two come from a build (one folder), from a tree with `bin` and `lib`, or from a Python wheel, which puts the command
//! among the scripts and the library into the package; and a folder of Pythons may hold several versions. Consequence: nothing
//! needs to be set, and of packages that lie side by side the one with our version is taken before any other.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::exit::UsageError;
use crate::launch::platform::Platform;

/// Of the library's folder inside a folder of packages.
const PACKAGE_LIBRARY_FOLDER: &str = "gpumemtrace/lib";

/// The library that `GPUMEMTRACE_LIB` names, else the one that came with this command.
pub(crate) fn find_library() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("GPUMEMTRACE_LIB") {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(|error| {
            UsageError(format!("GPUMEMTRACE_LIB names {}, which cannot be used: {error}", path.display()))
                .into()
        });
    }
    let executable = std::env::current_exe().context("this executable cannot be found")?;
    // On macOS it is the path that it was called by, which may be a link from elsewhere.
    let executable = executable.canonicalize().unwrap_or(executable);
    let folder = executable.parent().unwrap_or(Path::new("."));
    find_near(folder, Platform::HOST).ok_or_else(|| {
        UsageError(format!(
            "{} is neither beside {}, nor in ../lib from there, nor in a Python package gpumemtrace there; \
             set GPUMEMTRACE_LIB to it",
            Platform::HOST.library_name(),
            executable.display()
        ))
        .into()
    })
}

/// Refuses a library that the variable of this system's loader cannot name: it would say so and start the program without it, or, on
/// macOS, not at all.
pub(crate) fn check_preloadable(library: &Path, platform: Platform) -> anyhow::Result<()> {
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| platform.separators().contains(byte)) {
        let (shown, variable) = (library.display(), platform.preload_variable());
        let what = if platform.separators().contains(&b' ') { "a space or a colon" } else { "a colon" };
        return Err(UsageError(format!(
            "{shown}: {variable} cannot hold a path with {what}; move the library, or copy it and set GPUMEMTRACE_LIB to the copy"
        ))
        .into());
    }
    Ok(())
}

fn find_near(folder: &Path, platform: Platform) -> Option<PathBuf> {
    let places = [folder.join(platform.library_name()), folder.join("../lib").join(platform.library_name())];
    let near = places.iter().find_map(|place| place.canonicalize().ok());
    near.or_else(|| find_in_packages(&folder.join(".."), platform))
}

/// The library of a Python package that was installed below `prefix`.
fn find_in_packages(prefix: &Path, platform: Platform) -> Option<PathBuf> {
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
    let library = |packages: &Path| {
        packages.join(PACKAGE_LIBRARY_FOLDER).join(platform.library_name()).canonicalize().ok()
    };
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

    fn create_file(file: &Path) -> PathBuf {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, b"").unwrap();
        file.canonicalize().unwrap()
    }

    fn find_below(prefix: &Path, platform: Platform) -> Option<PathBuf> {
        fs::create_dir_all(prefix.join("bin")).unwrap();
        find_near(&prefix.join("bin"), platform)
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
            for platform in [Platform::Linux, Platform::MacOs] {
                let prefix = tempfile::tempdir().unwrap();
                assert_eq!(find_below(prefix.path(), platform), None);
                for other in ["libgpumemtrace.a", "libgpumemtrace.rlib"] {
                    create_file(&prefix.path().join(place).join(other));
                }
                assert_eq!(find_below(prefix.path(), platform), None);
                let library = create_file(&prefix.path().join(place).join(platform.library_name()));
                assert_eq!(find_below(prefix.path(), platform), Some(library), "{place}");
            }
        }
    }

    #[test]
    fn what_the_loader_would_take_for_two_files_is_refused() {
        let check = |folder: &str, platform: Platform| {
            check_preloadable(&Path::new(folder).join(platform.library_name()), platform)
                .map_err(|error| error.to_string())
        };
        let (linux, mac) = (Platform::Linux, Platform::MacOs);
        for (folder, platform) in
            [("/opt/venv-1/lib", linux), ("/opt/venv-1/lib", mac), ("/opt/my venv", mac)]
        {
            assert_eq!(check(folder, platform), Ok(()));
        }
        for (folder, platform) in [("/opt/my venv", linux), ("/opt/a:b", linux), ("/opt/a:b", mac)] {
            let error = check(folder, platform).unwrap_err();
            assert!(error.starts_with(folder) && error.contains("set GPUMEMTRACE_LIB"), "{error}");
            assert!(error.contains(platform.preload_variable()), "{error}");
        }
    }

    #[test]
    fn of_several_versions_ours_is_taken() {
        let prefix = tempfile::tempdir().unwrap();
        let of = |python: &str, version: &str| {
            let packages = prefix.path().join("lib").join(python).join("site-packages");
            fs::create_dir_all(packages.join(format!("gpumemtrace-{version}.dist-info"))).unwrap();
            create_file(&packages.join(PACKAGE_LIBRARY_FOLDER).join(Platform::HOST.library_name()))
        };
        of("python3.10", "0.0.1");
        let ours = of("python3.11", env!("CARGO_PKG_VERSION"));
        of("python3.9", "99.0.0");
        assert_eq!(find_below(prefix.path(), Platform::HOST), Some(ours));
    }
}
