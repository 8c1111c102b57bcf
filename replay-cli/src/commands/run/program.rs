//! Finds the program of a command line: `train.py` and `-m package` are arguments of Python.
//!
//! A command must run as in a shell, so only what a shell could not run becomes an argument of
//! Python. That is `-m`, a `.py` file that is not executable, and a `.py` file named without a
//! slash. The Python is the first that exists of: the caller (`python -m gpumemtrace run`), the one
//! beside this command if it was called by its path (`env/bin/gpumemtrace run`), that of the active
//! environment (`VIRTUAL_ENV`), `python3` on `PATH`, `python` on `PATH`. A command that was found
//! on `PATH` may lie in an environment of its own, such as pipx makes, without the program's
//! packages.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::terminal::escape::escape_text;
use crate::terminal::stderr::print_message;

/// Set by `python -m gpumemtrace` to its own interpreter.
pub(super) const PYTHON: &str = "GPUMEMTRACE_PYTHON";

/// The program to start, with all its arguments.
pub(in crate::commands) fn resolve_command(command: &[OsString], here: &Path) -> Vec<OsString> {
    let mut whole = command.to_vec();
    if command.first().is_some_and(|name| is_for_python(name, here)) {
        whole.insert(0, find_python());
    }
    whole
}

/// Names the Python on stderr, if [`resolve_command`] found one for the command.
pub(in crate::commands) fn name_python(command: &[OsString], whole: &[OsString]) {
    if let Some(python) = whole.first().filter(|_| whole.len() > command.len()) {
        let shown = escape_text(&Path::new(python).display().to_string());
        print_message(format_args!("gpumemtrace: the Python is {shown}"));
    }
}

fn is_for_python(name: &OsStr, here: &Path) -> bool {
    if name == "-m" {
        return true;
    }
    let bytes = name.as_encoded_bytes();
    if !bytes.ends_with(b".py") {
        return false;
    }
    let Ok(facts) = fs::metadata(here.join(name)) else { return false };
    let is_executable = facts.permissions().mode() & 0o111 != 0;
    facts.is_file() && !(is_executable && bytes.contains(&b'/'))
}

fn find_python() -> OsString {
    let asked = std::env::var_os(PYTHON).filter(|python| !python.is_empty());
    let environment = std::env::var_os("VIRTUAL_ENV").filter(|environment| !environment.is_empty());
    let of_environment = environment.map(|environment| Path::new(&environment).join("bin/python"));
    // The path that was called, not its link target: the link may lie in another environment.
    let command = std::env::args_os().next().map(PathBuf::from);
    let command = command.filter(|command| command.components().count() > 1);
    let beside = command.and_then(|command| Some(command.parent()?.join("python")));
    let exists = |python: &PathBuf| is_program(python);
    asked
        .or_else(|| beside.filter(exists).or(of_environment.filter(exists)).map(PathBuf::into_os_string))
        .or_else(|| {
            ["python3", "python"]
                .iter()
                .find_map(|name| find_on_path(Path::new(name)).map(PathBuf::into_os_string))
        })
        .unwrap_or_else(|| OsString::from("python3"))
}

fn find_on_path(name: &Path) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_a_shell_cannot_run_go_to_python() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        for (name, mode) in [("train.py", 0o644), ("tool.py", 0o755), ("tool", 0o755), ("notes.txt", 0o644)] {
            fs::write(here.join(name), "").unwrap();
            fs::set_permissions(here.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(here.join("folder.py")).unwrap();
        let of = |name: &str| is_for_python(OsStr::new(name), here);
        assert!(of("-m") && of("train.py") && of("./train.py") && of("tool.py"));
        assert!(!of("./tool.py"), "its shebang line names the interpreter");
        assert!(!of("tool") && !of("notes.txt") && !of("folder.py") && !of("none.py") && !of("python"));
        let command = ["train.py", "--epochs", "3"].map(OsString::from);
        let whole = resolve_command(&command, here);
        assert_eq!(&whole[1..], command);
        assert_eq!(resolve_command(&command[1..], here), &command[1..]);
    }
}
