//! Finds the recorder library (`libgpumemtrace.so`, `.dylib` on macOS) that belongs to this
//! command.
//!
//! Command and library lie in one folder (a build), in `bin` and `lib`, or among the scripts and in
//! the package (a Python wheel). All three work without configuration. A prefix may hold packages
//! for several Pythons; the one with our version is preferred.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::exit::UsageError;
use crate::launch::platform::Platform;

/// The library's folder, relative to `site-packages`.
const PACKAGE_LIBRARY_FOLDER: &str = "gpumemtrace/lib";

/// The library that `GPUMEMTRACE_LIB` names, else the one installed with this command.
pub(crate) fn find_library() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("GPUMEMTRACE_LIB") {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(|error| {
            UsageError(format!("cannot use {}, which GPUMEMTRACE_LIB names: {error}", path.display())).into()
        });
    }
    let executable = std::env::current_exe().context("cannot find this executable")?;
    // On macOS this is the path that was called, which may be a link.
    let executable = executable.canonicalize().unwrap_or(executable);
    let folder = executable.parent().unwrap_or(Path::new("."));
    find_near(folder, Platform::HOST).ok_or_else(|| {
        UsageError(format!(
            "cannot find {} beside {}, in ../lib, or in an installed gpumemtrace package; set GPUMEMTRACE_LIB to its path",
            Platform::HOST.library_name(),
            executable.display()
        ))
        .into()
    })
}

/// Refuses a library path with a separator of the loader's variable. With such a path, glibc would
/// run the program without the library, and dyld would not run it at all.
pub(crate) fn check_preloadable(library: &Path, platform: Platform) -> anyhow::Result<()> {
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| platform.separators().contains(byte)) {
        let (shown, variable) = (library.display(), platform.preload_variable());
        let what = if platform.separators().contains(&b' ') { "a space or a colon" } else { "a colon" };
        return Err(UsageError(format!(
            "{shown}: {variable} cannot hold a path with {what}; copy the library elsewhere and set GPUMEMTRACE_LIB to the copy"
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

/// The library of a Python package that is installed below `prefix`.
fn find_in_packages(prefix: &Path, platform: Platform) -> Option<PathBuf> {
    // `pip install --target` installs packages into the prefix itself.
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
    // Without a package of our version, take any.
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
    fn library_is_found_in_every_install_layout() {
        for place in [
            "bin",
            "lib",
            "lib/python3.10/site-packages/gpumemtrace/lib",
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
    fn library_path_with_separator_is_refused() {
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
    fn package_of_our_version_is_preferred() {
        let prefix = tempfile::tempdir().unwrap();
        let of = |python: &str, version: &str| {
            let packages = prefix.path().join("lib").join(python).join("site-packages");
            fs::create_dir_all(packages.join(format!("gpumemtrace-{version}.dist-info"))).unwrap();
            create_file(&packages.join(PACKAGE_LIBRARY_FOLDER).join(Platform::HOST.library_name()))
        };
        of("python3.10", "0.0.1");
        let ours = of("python3.11", env!("CARGO_PKG_VERSION"));
        of("python3.11", "99.0.0");
        assert_eq!(find_below(prefix.path(), Platform::HOST), Some(ours));
    }
}
