//! What the program's environment needs for the library to be in it, or why nothing is put there.
//!
//! Constraint: on macOS the loader ends a program that may not load what `DYLD_INSERT_LIBRARIES` names. Consequence: where it is known
//! that the program lets nobody in, it is started as it would be without us.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use gpumemtrace_cli::launch::injectable::{Files, Obstacle, Start};

use crate::launch::platform::System;

/// Where the system looks if nobody says where (`_PATH_DEFPATH`).
const USUAL_SEARCH: &str = "/usr/bin:/bin";

/// The variables; none, and what keeps us out, where that is known.
pub(crate) fn into(
    system: System,
    library: &Path,
    (program, here): (&OsStr, &Path),
    files: &impl Files,
    set: impl Fn(&str) -> Option<OsString>,
) -> (Vec<(&'static str, OsString)>, Option<Obstacle>) {
    let obstacle = obstacle(system, (program, here), files, &set);
    let variables = if obstacle.is_some() { Vec::new() } else { system.environment(library, set) };
    (variables, obstacle)
}

/// What keeps a library out of this program, if anything does that can be known before it is started.
pub(crate) fn obstacle(
    system: System,
    (program, here): (&OsStr, &Path),
    files: &impl Files,
    set: impl Fn(&str) -> Option<OsString>,
) -> Option<Obstacle> {
    if system != System::MacOs {
        return None;
    }
    let search = set("PATH").unwrap_or_else(|| USUAL_SEARCH.into());
    Start { name: program, here, search: &search }.obstacle(files)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use gpumemtrace_cli::launch::injectable::{Disk, Reason};

    use super::*;

    #[test]
    fn what_lets_nobody_in_is_started_as_without_us() {
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
        let into = |system, program| {
            let program = OsStr::new(program);
            let (variables, obstacle) = into(system, Path::new("/opt/lib"), (program, &here), &Disk, set);
            (variables, obstacle.map(|found| found.reason))
        };
        let inserted = vec![("DYLD_INSERT_LIBRARIES", OsString::from("/opt/lib:/other.dylib"))];
        assert_eq!(into(System::MacOs, "plain"), (inserted.clone(), None));
        assert_eq!(into(System::MacOs, "./none"), (inserted, None), "the shell will say so");
        for program in ["hardened", "./hardened"] {
            assert_eq!(into(System::MacOs, program), (Vec::new(), Some(Reason::Hardened)));
        }
        // No matter what it looks like, Linux has no such rules.
        let (variables, reason) = into(System::Linux, "x86_64");
        assert_eq!((variables[0].0, reason), ("LD_PRELOAD", None));
    }
}
