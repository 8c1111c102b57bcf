//! Finds the PyTorch of a command, without importing it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use simgpu_setup::Wheel;

use crate::exit::UsageError;

/// Prints the file of the module, or an empty line; in a Python older than 3.10, `old`.
const FIND: &str = "import sys, importlib.util as u; s = u.find_spec('torch'); \
                    print('old' if sys.version_info < (3, 10) else s and s.origin or '')";

/// Prints the version of cuDNN that PyTorch was compiled against.
const CUDNN: &str = "import torch; print(*torch._C._cudnn.getCompileVersion())";

/// A PyTorch, and the command that starts its Python.
pub(super) struct InstalledTorch {
    pub(super) wheel: Wheel,
    python: Vec<OsString>,
}

impl InstalledTorch {
    /// The version of cuDNN that it was compiled against, by its own code, which runs with these
    /// libraries preloaded. Takes as long as an import of PyTorch.
    pub(super) fn compiled_cudnn(&self, preloaded: &OsStr) -> Option<[u32; 3]> {
        let mut python = Command::new(&self.python[0]);
        let answer =
            python.args(&self.python[1..]).args(["-c", CUDNN]).env("LD_PRELOAD", preloaded).output().ok()?;
        let text = String::from_utf8(answer.stdout).ok()?;
        let numbers: Option<Vec<u32>> =
            text.lines().next_back()?.split_whitespace().map(|number| number.parse().ok()).collect();
        numbers?.try_into().ok()
    }
}

/// The PyTorch that the command's Python would import.
pub(super) fn find_torch(command: &[OsString], here: &Path) -> anyhow::Result<InstalledTorch> {
    let python = interpreter_of(&command[0], here).map_err(|why| {
        let program = command[0].to_string_lossy();
        refuse(match why {
            NoInterpreter::NotFound => format!(
                "{program} was not found; activate its environment, or write the command as `python -m ...`"
            ),
            NoInterpreter::NotPython => format!(
                "{program} is neither Python nor a Python script; write the command as `python ...` or `python -m ...`"
            ),
        })
    })?;
    let shown = python[0].to_string_lossy().into_owned();
    let answer = Command::new(&python[0]).args(&python[1..]).args(["-c", FIND]).output();
    let answer = answer.map_err(|error| refuse(format!("cannot start {shown}: {error}")))?;
    let text = String::from_utf8_lossy(&answer.stdout);
    let origin = text.lines().next_back().unwrap_or_default().trim();
    if origin == "old" {
        return Err(refuse(format!("{shown} is older than CPython 3.10, the oldest that simulate supports")));
    }
    let packages = Path::new(origin).parent().and_then(Path::parent);
    let packages = packages.filter(|_| !origin.is_empty()).ok_or_else(|| {
        refuse(format!("{shown} has no PyTorch; install a CUDA build of torch in its environment"))
    })?;
    let wheel = Wheel::find(packages).map_err(|error| {
        refuse(format!("{error:#}; install a CUDA build of torch (no GPU and no nvidia packages are needed)"))
    })?;
    Ok(InstalledTorch { wheel, python })
}

fn refuse(why: impl std::fmt::Display) -> anyhow::Error {
    UsageError(format!("simulate: {why}")).into()
}

/// Why the Python of a program is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoInterpreter {
    /// No such file exists in the folder or on `PATH`.
    NotFound,
    /// The file is not a Python script.
    NotPython,
}

/// The command that starts the Python of a program: the program itself, or what its first line
/// names, as in `torchrun`.
fn interpreter_of(program: &OsStr, here: &Path) -> Result<Vec<OsString>, NoInterpreter> {
    let name = Path::new(program).file_name().ok_or(NoInterpreter::NotPython)?.to_string_lossy();
    if name.starts_with("python") || name.starts_with("pypy") {
        return Ok(vec![program.to_owned()]);
    }
    let path = find_program(program, here).ok_or(NoInterpreter::NotFound)?;
    python_of_script(&path).ok_or(NoInterpreter::NotPython)
}

fn find_program(program: &OsStr, here: &Path) -> Option<PathBuf> {
    if Path::new(program).components().count() > 1 {
        return Some(here.join(program)).filter(|path| path.is_file());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The interpreter and its arguments in the first line of a script, if it is a Python.
fn python_of_script(path: &PathBuf) -> Option<Vec<OsString>> {
    let mut head = [0; 256];
    let length = File::open(path).ok()?.read(&mut head).ok()?;
    let text = String::from_utf8_lossy(&head[..length]);
    let line = text.strip_prefix("#!")?.lines().next()?.trim().to_owned();
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    line.contains("python").then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_is_named_by_the_program_or_its_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        std::fs::write(here.join("torchrun"), "#!/venv/bin/python3.12\nimport sys\n").unwrap();
        std::fs::write(here.join("tool"), "#!/usr/bin/env python3\n").unwrap();
        std::fs::write(here.join("script"), "#!/bin/sh\npython train.py\n").unwrap();
        let of = |program: &str| interpreter_of(OsStr::new(program), here);
        let words = |words: &[&str]| Ok(words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of("/venv/bin/python3"), words(&["/venv/bin/python3"]));
        assert_eq!(of("./torchrun"), words(&["/venv/bin/python3.12"]));
        assert_eq!(of("./tool"), words(&["/usr/bin/env", "python3"]));
        assert_eq!(of("./script"), Err(NoInterpreter::NotPython));
        assert_eq!(of("./none"), Err(NoInterpreter::NotFound));
        assert_eq!(of("no-launcher-of-this-name"), Err(NoInterpreter::NotFound));
    }
}
