//! The environment that preloads the library into a program, or why it must not be set.
//!
//! On macOS, dyld ends a program that may not load a library in `DYLD_INSERT_LIBRARIES`. If a check
//! of the executable shows that it does not allow injection, the program runs unrecorded.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::launch::injectable::{FileSystem, InjectionBlocker, LaunchTarget};

use crate::launch::platform::Platform;
use crate::launch::sanitizer;

/// The search path without `PATH` (`_PATH_DEFPATH`).
pub(super) const DEFAULT_SEARCH_PATH: &str = "/usr/bin:/bin";

/// The variables to set. With an [`InjectionBlocker`] there are none.
pub(crate) fn environment(
    platform: Platform,
    library: &Path,
    (program, here): (&OsStr, &Path),
    files: &impl FileSystem,
    set: impl Fn(&str) -> Option<OsString>,
) -> (Vec<(&'static str, OsString)>, Option<InjectionBlocker>) {
    let blocker = find_blocker(platform, (program, here), files, &set);
    let runtime = match platform {
        Platform::Linux => sanitizer::runtime_of(program, here, set("PATH")),
        Platform::MacOs => None,
    };
    let variables = if blocker.is_some() {
        Vec::new()
    } else {
        platform.preload_environment(library, runtime.as_deref(), set)
    };
    (variables, blocker)
}

/// Why the program cannot load the library, as far as its files show. Always `None` on Linux.
pub(crate) fn find_blocker(
    platform: Platform,
    (program, here): (&OsStr, &Path),
    files: &impl FileSystem,
    set: impl Fn(&str) -> Option<OsString>,
) -> Option<InjectionBlocker> {
    if platform != Platform::MacOs {
        return None;
    }
    let search = set("PATH").unwrap_or_else(|| DEFAULT_SEARCH_PATH.into());
    LaunchTarget { name: program, here, search: &search }.find_blocker(files)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use crate::launch::injectable::{BlockReason, HostFileSystem};

    use super::*;

    #[test]
    fn program_with_injection_blocker_gets_no_variables() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().canonicalize().unwrap();
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/macho");
        for name in ["plain", "hardened", "x86_64"] {
            let packed = fs::read(samples.join(format!("{name}.zlib"))).unwrap();
            fs::write(here.join(name), miniz_oxide::inflate::decompress_to_vec_zlib(&packed).unwrap())
                .unwrap();
            fs::set_permissions(here.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let set = |name: &str| match name {
            "PATH" => Some(here.clone().into_os_string()),
            "DYLD_INSERT_LIBRARIES" => Some("/other.dylib".into()),
            _ => None,
        };
        let environment_with = |platform, program| {
            let program = OsStr::new(program);
            let (variables, blocker) =
                environment(platform, Path::new("/opt/lib"), (program, &here), &HostFileSystem, set);
            (variables, blocker.map(|found| found.reason))
        };
        let inserted = vec![("DYLD_INSERT_LIBRARIES", OsString::from("/opt/lib:/other.dylib"))];
        assert_eq!(environment_with(Platform::MacOs, "plain"), (inserted.clone(), None));
        assert_eq!(
            environment_with(Platform::MacOs, "./none"),
            (inserted, None),
            "spawning it reports the error"
        );
        for program in ["hardened", "./hardened"] {
            assert_eq!(environment_with(Platform::MacOs, program), (Vec::new(), Some(BlockReason::Hardened)));
        }
        // Linux has no such rules.
        let (variables, reason) = environment_with(Platform::Linux, "x86_64");
        assert_eq!((variables[0].0, reason), ("LD_PRELOAD", None));
    }
}
