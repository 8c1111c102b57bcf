//! `--holders`: how the Python of the command comes to look who holds what leaks.
//!
//! Constraint: the library may call nothing of Python's, and the package need not be installed where the command's Python looks for
//! packages, nor be of this version. Consequence: the few files that look are in this binary. They go into a folder of our own, for
//! as long as the command runs, and Python finds them there as `sitecustomize`, which hands on to the one that it hides.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use gpumemtrace_format::EventKind;
use tempfile::TempDir;

use crate::trace::open::TraceSource;
use crate::trace::quick_info::IndexSummary;

/// The text of a file of the package.
macro_rules! python {
    ($file:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../pytorch-allocator-shim/python/gpumemtrace/_holders/",
            $file
        ))
    };
}
/// The package that looks, and what starts it.
const PACKAGE_NAME: &str = "_gpumemtrace_holders";
const STARTUP_FILE: (&str, &str) = ("sitecustomize.py", python!("site/sitecustomize.py"));
const SCANNER_FILES: &[(&str, &str)] = &[
    ("__init__.py", python!("__init__.py")),
    ("_frames.py", python!("_frames.py")),
    ("_hooks.py", python!("_hooks.py")),
    ("_library.py", python!("_library.py")),
    ("_look.py", python!("_look.py")),
    ("_names.py", python!("_names.py")),
    ("_safe.py", python!("_safe.py")),
    ("_torch.py", python!("_torch.py")),
    ("_walk.py", python!("_walk.py")),
    ("_ways.py", python!("_ways.py")),
];

/// The name of a signal that a program may wait for.
pub(super) fn parse_signal(text: &str) -> Result<String, String> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let is_word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_word || name.bytes().all(|byte| byte.is_ascii_digit()) || matches!(name, "KILL" | "STOP") {
        return Err("give a signal such as USR1 that the program does not use".to_owned());
    }
    Ok(name.to_owned())
}

/// A number of seconds.
pub(super) fn parse_limit(text: &str) -> Result<String, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(text.to_owned()),
        _ => Err("give seconds, at most 3600".to_owned()),
    }
}

/// Says so if in none of these traces anybody looked, as far as their sums tell.
pub(super) fn warn_if_not_scanned(traces: &[PathBuf]) {
    let looks = |path: &PathBuf| {
        let (file, _) = TraceSource::find(path).ok()?;
        let kinds = IndexSummary::read(&file.parts, None)?.totals.kinds;
        Some(kinds.iter().any(|(kind, count)| *kind == EventKind::HOLDERS.0 && *count > 0))
    };
    if !traces.is_empty() && traces.iter().all(|path| looks(path) == Some(false)) {
        eprintln!(
            "gpumemtrace: nobody looked who holds what leaks: no Python of the command ended by itself (os._exit and signals are no \
             such end), or it ran with -I, -E or -S, or is older than 3.8"
        );
    }
}

/// The folder that Python finds, until this is dropped.
pub(super) struct HoldersHook {
    folder: TempDir,
}

impl HoldersHook {
    /// Writes it.
    pub(super) fn new() -> anyhow::Result<Self> {
        Self::create().context("--holders: no folder for what looks can be made")
    }

    fn create() -> io::Result<Self> {
        // Nobody else may put a module there.
        let private = Permissions::from_mode(0o700);
        let folder =
            tempfile::Builder::new().prefix("gpumemtrace-holders-").permissions(private).tempdir()?;
        let package = folder.path().join(PACKAGE_NAME);
        fs::create_dir(&package)?;
        fs::write(folder.path().join(STARTUP_FILE.0), STARTUP_FILE.1)?;
        for (name, text) in SCANNER_FILES {
            fs::write(package.join(name), text)?;
        }
        Ok(Self { folder })
    }

    /// Has it found by the Python of this command.
    pub(super) fn configure(
        &self,
        command: &mut Command,
        signal: Option<&str>,
        limit: Option<&str>,
    ) -> anyhow::Result<()> {
        let mut path = self.folder.path().as_os_str().to_owned();
        if let Some(old) = std::env::var_os("PYTHONPATH").filter(|old| !old.is_empty()) {
            path.push(":");
            path.push(old);
        }
        let own = std::env::current_exe().context("--holders: where this command is cannot be told")?;
        command.env("PYTHONPATH", path).env("GPUMEMTRACE_HOLDERS", "1").env("GPUMEMTRACE_COMMAND", own);
        let options = [("GPUMEMTRACE_HOLDERS_SIGNAL", signal), ("GPUMEMTRACE_HOLDERS_LIMIT", limit)];
        for (variable, value) in options {
            if let Some(value) = value {
                command.env(variable, value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn all_files_that_look_are_in_the_binary() {
        let folder =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../pytorch-allocator-shim/python/gpumemtrace/_holders");
        let mut there: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "py"))
            .collect();
        there.sort();
        let known: Vec<&str> = SCANNER_FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(there, known);
    }

    #[test]
    fn the_folder_is_gone_when_the_command_has_ended() {
        let hook = HoldersHook::create().unwrap();
        let folder = hook.folder.path().to_owned();
        assert!(
            folder.join(STARTUP_FILE.0).is_file() && folder.join(PACKAGE_NAME).join("_look.py").is_file()
        );
        let mut command = Command::new("python3");
        hook.configure(&mut command, Some("USR1"), None).unwrap();
        let path = command.get_envs().find(|(name, _)| *name == "PYTHONPATH").unwrap().1.unwrap();
        assert!(path.to_string_lossy().starts_with(&*folder.to_string_lossy()));
        assert!(!command.get_envs().any(|(name, _)| name == "GPUMEMTRACE_HOLDERS_LIMIT"));
        drop(hook);
        assert!(!folder.exists());
    }

    #[test]
    fn what_is_no_signal_or_no_time_is_refused() {
        assert_eq!(
            (parse_signal("usr1").as_deref(), parse_signal("SIGUSR2").as_deref()),
            (Ok("USR1"), Ok("USR2"))
        );
        for wrong in ["", "SIG", "10", "KILL", "SIGSTOP", "US R1"] {
            assert!(parse_signal(wrong).is_err(), "{wrong}");
        }
        assert!(parse_limit("0.5").is_ok());
        for wrong in ["0", "-1", "4000", "nan", "inf", "two"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }
}
