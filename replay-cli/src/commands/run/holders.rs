//! `--holders`: makes the Python of the command scan which references hold leaked blocks.
//!
//! The recorder must not call the Python API, so the scanner is Python code (`python_hook.rs`).

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use gpumemtrace_format::EventKind;

use super::candidate_server::CandidateServer;
use super::python_hook::PythonHook;
use crate::terminal::stderr::print_message;
use crate::trace::open::TraceSource;
use crate::trace::quick_info::IndexSummary;

/// The text of a file of the scanner.
macro_rules! python {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../python/gpumemtrace/_holders/", $file))
    };
}
/// The name under which the scanner is imported.
const PACKAGE_NAME: &str = "_gpumemtrace_holders";
const SCANNER_FILES: &[(&str, &str)] = &[
    ("__init__.py", python!("__init__.py")),
    ("candidates.py", python!("candidates.py")),
    ("frames.py", python!("frames.py")),
    ("import_hook.py", python!("import_hook.py")),
    ("intervals.py", python!("intervals.py")),
    ("library.py", python!("library.py")),
    ("names.py", python!("names.py")),
    ("paths.py", python!("paths.py")),
    ("returns.py", python!("returns.py")),
    ("safe_access.py", python!("safe_access.py")),
    ("safe_point.py", python!("safe_point.py")),
    ("scan.py", python!("scan.py")),
    ("search.py", python!("search.py")),
    ("text.py", python!("text.py")),
    ("torch_objects.py", python!("torch_objects.py")),
    ("triggers.py", python!("triggers.py")),
];

/// Parses the name of a signal that a program can handle, with or without `SIG`.
pub(super) fn parse_signal(text: &str) -> Result<String, String> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let is_word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_word || name.bytes().all(|byte| byte.is_ascii_digit()) || matches!(name, "KILL" | "STOP") {
        return Err("expected a signal such as USR1 that the program does not use".to_owned());
    }
    Ok(name.to_owned())
}

/// Checks a number of seconds.
pub(super) fn parse_limit(text: &str) -> Result<String, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(text.to_owned()),
        _ => Err("expected seconds, at most 3600".to_owned()),
    }
}

/// Prints a warning if the indexes of these traces show that none contains a scan.
pub(super) fn warn_if_not_scanned(traces: &[PathBuf]) {
    let has_scan = |path: &PathBuf| {
        let (file, _) = TraceSource::find(path).ok()?;
        let kinds = IndexSummary::read(&file.parts, None)?.totals.kinds;
        Some(kinds.iter().any(|(kind, count)| *kind == EventKind::HOLDERS.0 && *count > 0))
    };
    if !traces.is_empty() && traces.iter().all(|path| has_scan(path) == Some(false)) {
        print_message(format_args!(
            "gpumemtrace: --holders: no scan ran: Python ended by os._exit or a signal, ran with -I, -E or -S, or is older \
             than 3.10"
        ));
    }
}

/// The temporary folder on `PYTHONPATH`; dropping it removes the folder.
pub(super) struct HoldersHook {
    // Dropped before the folder that has its socket.
    server: CandidateServer,
    executable: PathBuf,
    python: PythonHook,
}

impl HoldersHook {
    /// Writes the scanner into a new folder.
    pub(super) fn new() -> anyhow::Result<Self> {
        Self::create().context("--holders: cannot prepare a temporary folder")
    }

    fn create() -> io::Result<Self> {
        let python = PythonHook::create(PACKAGE_NAME, SCANNER_FILES)?;
        let executable = std::env::current_exe()?;
        let server = CandidateServer::start(python.folder(), executable.clone())?;
        Ok(Self { server, executable, python })
    }

    /// Sets the environment variables by which the Python of `command` finds and runs the scanner.
    pub(super) fn configure(
        &self,
        command: &mut Command,
        python_path: Option<OsString>,
        signal: Option<&str>,
        limit: Option<&str>,
    ) {
        command
            .env("PYTHONPATH", self.python.python_path(python_path))
            .env("GPUMEMTRACE_HOLDERS", "1")
            .env("GPUMEMTRACE_COMMAND", &self.executable)
            .env("GPUMEMTRACE_HOLDERS_SOCKET", self.server.path());
        let options = [("GPUMEMTRACE_HOLDERS_SIGNAL", signal), ("GPUMEMTRACE_HOLDERS_LIMIT", limit)];
        for (variable, value) in options {
            if let Some(value) = value {
                command.env(variable, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_scanner_file_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/gpumemtrace/_holders");
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
    fn dropping_hook_removes_its_folder() {
        let hook = HoldersHook::create().unwrap();
        let folder = hook.python.folder().to_owned();
        assert!(
            folder.join("sitecustomize.py").is_file() && folder.join(PACKAGE_NAME).join("scan.py").is_file()
        );
        assert!(hook.server.path().exists());
        let mut command = Command::new("python3");
        hook.configure(&mut command, None, Some("USR1"), None);
        let path = command.get_envs().find(|(name, _)| *name == "PYTHONPATH").unwrap().1.unwrap();
        assert!(path.to_string_lossy().starts_with(&*folder.to_string_lossy()));
        assert!(!command.get_envs().any(|(name, _)| name == "GPUMEMTRACE_HOLDERS_LIMIT"));
        drop(hook);
        assert!(!folder.exists());
    }

    #[test]
    fn invalid_signal_and_limit_are_refused() {
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
