//! Decides whether a program on macOS accepts a library through `DYLD_INSERT_LIBRARIES`.
//!
//! macOS removes the variable for some programs, and ends others that may not load the library. So
//! every executable on the way is checked before the start: the interpreter of a script, and the
//! program that a framework's Python re-executes. The first one that blocks injection is reported
//! with a reason and an advice ([`InjectionBlocker`]), and the program runs unrecorded.
//!
//! Everything here is a function of names and bytes, so tests run on every system.

mod blocker;
mod entitlements;
mod executable;
mod files;
mod macho;
mod signature;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

pub use blocker::{Advice, BlockReason, InjectionBlocker};
pub use entitlements::{ALLOW_LIBRARIES, ALLOW_VARIABLES, Entitlements, parse_der, parse_plist};
pub use executable::{ExecutableKind, ScriptHeader};
pub use files::{FileSystem, HostFileSystem};
pub use macho::{CpuArchitecture, MachOSlice, read_slices};
pub use signature::CodeSignature;

/// Longest chain of interpreters: a script may be run by another script.
const MOST_PROGRAMS: usize = 5;
/// The set-user-ID and set-group-ID bits of a file mode.
const SET_ID: u32 = 0o6000;

/// A program to start.
#[derive(Clone, Copy)]
pub struct LaunchTarget<'a> {
    /// The program as the user typed it, with or without a path.
    pub name: &'a OsStr,
    /// The current folder, to which relative paths refer.
    pub here: &'a Path,
    /// The value of `PATH`.
    pub search: &'a OsStr,
}

impl LaunchTarget<'_> {
    /// The first executable that blocks injection. `None` if there is none, or if a file on the way
    /// cannot be read.
    pub fn find_blocker(&self, files: &impl FileSystem) -> Option<InjectionBlocker> {
        let mut path = files::find(Path::new(self.name), self.here, self.search, files)?;
        let mut first_script: Option<(PathBuf, ScriptHeader)> = None;
        for _ in 0..MOST_PROGRAMS {
            let file = files.behind_links(&path)?;
            let slices = match files.program(&file)? {
                ExecutableKind::MachO(slices) => slices,
                other => {
                    let script = if let ExecutableKind::Script(script) = other {
                        script
                    } else {
                        ExecutableKind::shell_script()
                    };
                    let interpreter = self.here.join(&script.interpreter);
                    first_script.get_or_insert((path, script));
                    path = interpreter;
                    continue;
                }
            };
            if let Some(reason) = find_reason(&file, files.mode(&file)?, &slices) {
                let advice = self.advice(&file, reason, first_script.as_ref(), files);
                return Some(InjectionBlocker { program: file, reason, advice });
            }
            path = app_of_framework(&file).filter(|app| files.mode(app).is_some())?;
        }
        None
    }

    fn advice(
        &self,
        program: &Path,
        reason: BlockReason,
        script: Option<&(PathBuf, ScriptHeader)>,
        files: &impl FileSystem,
    ) -> Advice {
        if let Some((path, script)) = script {
            let found = script
                .program_of_env()
                .and_then(|name| files::find(Path::new(name), self.here, self.search, files));
            let python = found.or_else(|| script.handed_on_to.clone());
            let lets_in = |python: &PathBuf| {
                files.mode(python).is_some()
                    && LaunchTarget { name: python.as_os_str(), ..*self }.find_blocker(files).is_none()
            };
            if let Some(python) = python.filter(lets_in) {
                // Keep a path as the user typed it.
                let is_path = self.name.as_encoded_bytes().contains(&b'/');
                let script = if is_path { PathBuf::from(self.name) } else { path.clone() };
                return Advice::Directly { interpreter: python, script };
            }
        }
        if is_python(program) {
            return Advice::OtherPython;
        }
        match reason {
            // These cannot be changed, so the program that they start has to be named.
            BlockReason::System | BlockReason::SetId => Advice::Behind,
            BlockReason::Restricted | BlockReason::Hardened | BlockReason::Validates => Advice::SignAgain,
            BlockReason::Architecture(_) => Advice::OtherBuild,
        }
    }
}

/// Why this executable blocks injection; `None` if it allows it.
fn find_reason(file: &Path, mode: u32, slices: &[MachOSlice]) -> Option<BlockReason> {
    let of = |processor| slices.iter().find(|slice| slice.processor == processor);
    // The kernel prefers arm64; programs of macOS itself have arm64e instead.
    let ours = of(CpuArchitecture::Arm64);
    let chosen = ours.or_else(|| of(CpuArchitecture::Arm64e)).or(slices.first())?;
    let signature = chosen.signature.unwrap_or_default();
    if is_of_system(file) || signature.is_of_system {
        Some(BlockReason::System)
    } else if mode & SET_ID != 0 {
        Some(BlockReason::SetId)
    } else if chosen.has_restrict_segment || signature.is_restricted() {
        Some(BlockReason::Restricted)
    } else if signature.ignores_variables() {
        Some(BlockReason::Hardened)
    } else if ours.is_none() {
        Some(BlockReason::Architecture(chosen.processor))
    } else if signature.validates_libraries() {
        Some(BlockReason::Validates)
    } else {
        None
    }
}

/// True for a folder that System Integrity Protection guards.
fn is_of_system(file: &Path) -> bool {
    let guarded = ["/bin", "/sbin", "/usr", "/System"];
    let free = ["/usr/local", "/System/Volumes/Data"];
    guarded.iter().any(|folder| file.starts_with(folder))
        && !free.iter().any(|folder| file.starts_with(folder))
}

/// True if the file name starts with `python`.
fn is_python(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    name.starts_with("python")
}

/// The program that a framework's Python re-executes: `Versions/3.12/bin/python3.12` starts
/// `Versions/3.12/Resources/Python.app/Contents/MacOS/Python`.
fn app_of_framework(file: &Path) -> Option<PathBuf> {
    let bin = file.parent().filter(|bin| bin.ends_with("bin") && is_python(file))?;
    Some(bin.parent()?.join("Resources/Python.app/Contents/MacOS/Python"))
}
