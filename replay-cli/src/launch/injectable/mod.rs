//! Whether macOS lets a library into a program that is started with `DYLD_INSERT_LIBRARIES`.
//!
//! Constraint: there are programs from which macOS takes the variable away without a word, and others that the loader ends because it may not
//! load what the variable names. Consequence: before it is started, every program on the way is looked at: what runs a
//! script, and what a Python of a framework starts in its own place. The first one that does not let us in is named, with the reason and
//! what to do; then nothing is inserted, and the program runs as it does without us.
//!
//! All of this is a function of names and bytes, and says the same on every system.

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

/// A script may be run by a script; nobody has more of them.
const MOST_PROGRAMS: usize = 5;
/// Bits of a mode: it runs as its file's owner, or group.
const SET_ID: u32 = 0o6000;

/// A command that is to be started.
#[derive(Clone, Copy)]
pub struct LaunchTarget<'a> {
    /// The program, as it was named.
    pub name: &'a OsStr,
    /// The current folder.
    pub here: &'a Path,
    /// `PATH`.
    pub search: &'a OsStr,
}

impl LaunchTarget<'_> {
    /// What keeps a library from outside out of it, if anything that can be known does.
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
                        ExecutableKind::of_the_shell()
                    };
                    let interpreter = self.here.join(&script.interpreter);
                    first_script.get_or_insert((path, script));
                    path = interpreter;
                    continue;
                }
            };
            if let Some(reason) = why_not(&file, files.mode(&file)?, &slices) {
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
                .looked_for()
                .and_then(|name| files::find(Path::new(name), self.here, self.search, files));
            let python = found.or_else(|| script.handed_on_to.clone());
            let lets_in = |python: &PathBuf| {
                files.mode(python).is_some()
                    && LaunchTarget { name: python.as_os_str(), ..*self }.find_blocker(files).is_none()
            };
            if let Some(python) = python.filter(lets_in) {
                // As the user wrote it, where that is a path.
                let is_path = self.name.as_encoded_bytes().contains(&b'/');
                let script = if is_path { PathBuf::from(self.name) } else { path.clone() };
                return Advice::Directly { interpreter: python, script };
            }
        }
        if is_python(program) {
            return Advice::OtherPython;
        }
        match reason {
            // What is nobody's to change runs something else for the user.
            BlockReason::System | BlockReason::SetId => Advice::Behind,
            BlockReason::Restricted | BlockReason::Hardened | BlockReason::Validates => Advice::SignAgain,
            BlockReason::Architecture(_) => Advice::OtherBuild,
        }
    }
}

/// Why this program lets nobody in.
fn why_not(file: &Path, mode: u32, slices: &[MachOSlice]) -> Option<BlockReason> {
    let of = |processor| slices.iter().find(|slice| slice.processor == processor);
    // As the system chooses among them: of its own programs, it takes the other.
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

/// In a folder that System Integrity Protection guards.
fn is_of_system(file: &Path) -> bool {
    let guarded = ["/bin", "/sbin", "/usr", "/System"];
    let free = ["/usr/local", "/System/Volumes/Data"];
    guarded.iter().any(|folder| file.starts_with(folder))
        && !free.iter().any(|folder| file.starts_with(folder))
}

/// A Python's name, in whatever place.
fn is_python(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    name.starts_with("python")
}

/// What the Python of a framework starts in its own place: `Versions/3.12/bin/python3.12` becomes
/// `Versions/3.12/Resources/Python.app/Contents/MacOS/Python`.
fn app_of_framework(file: &Path) -> Option<PathBuf> {
    let bin = file.parent().filter(|bin| bin.ends_with("bin") && is_python(file))?;
    Some(bin.parent()?.join("Resources/Python.app/Contents/MacOS/Python"))
}
