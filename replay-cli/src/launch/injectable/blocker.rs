//! The reason why an executable blocks injection, as one sentence with an advice.

use std::fmt;
use std::path::{Path, PathBuf};

use super::entitlements::{ALLOW_LIBRARIES, ALLOW_VARIABLES};
use super::macho::CpuArchitecture;

/// An executable that blocks injection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InjectionBlocker {
    /// The file, with all links resolved.
    pub program: PathBuf,
    /// The rule of macOS that applies.
    pub reason: BlockReason,
    /// What the user can do.
    pub advice: Advice,
}

/// Why an executable blocks injection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockReason {
    /// It is part of macOS (System Integrity Protection).
    System,
    /// It has a set-user-ID or set-group-ID bit.
    SetId,
    /// It has a segment `__RESTRICT`, or its signature has the flag `CS_RESTRICT`.
    Restricted,
    /// It has the hardened runtime without the entitlement [`ALLOW_VARIABLES`].
    Hardened,
    /// It has library validation: it loads libraries of Apple and of its own team only.
    Validates,
    /// It is built for this processor and the library is not.
    Architecture(CpuArchitecture),
}

/// What the user can do about an [`InjectionBlocker`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Start the interpreter of the script directly, without `env` or a shell.
    Directly {
        /// The interpreter, which allows injection.
        interpreter: PathBuf,
        /// The script to run in it.
        script: PathBuf,
    },
    /// Use a Python that is not Apple's.
    OtherPython,
    /// Name the program that the blocked one starts.
    Behind,
    /// Sign a copy of the program without the hardened runtime.
    SignAgain,
    /// Use a build for arm64.
    OtherBuild,
}

impl fmt::Display for InjectionBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.program.display())?;
        match self.reason {
            BlockReason::System => f.write_str(
                "is part of macOS, which removes DYLD_INSERT_LIBRARIES for it and its children (System Integrity Protection)",
            ),
            BlockReason::SetId => {
                f.write_str("is a set-user-ID or set-group-ID program, for which macOS removes DYLD_INSERT_LIBRARIES")
            }
            BlockReason::Restricted => {
                f.write_str("is marked as restricted, so macOS removes DYLD_INSERT_LIBRARIES")
            }
            BlockReason::Hardened => write!(
                f,
                "has the hardened runtime without the entitlement {ALLOW_VARIABLES}, so macOS removes DYLD_INSERT_LIBRARIES"
            ),
            BlockReason::Validates => write!(
                f,
                "has library validation without the entitlement {ALLOW_LIBRARIES}, so macOS refuses to load the recorder"
            ),
            BlockReason::Architecture(processor) => {
                write!(f, "is built for {}, but the recorder for arm64", processor.name())
            }
        }?;
        f.write_str("; ")?;
        match &self.advice {
            Advice::Directly { interpreter, script } => {
                write!(f, "use: gpumemtrace run -- {} {}", word(interpreter), word(script))
            }
            Advice::OtherPython => f.write_str("use an arm64 Python from Homebrew, conda, uv or python.org"),
            Advice::Behind => f.write_str("name the program that it starts: gpumemtrace run -- PROGRAM"),
            Advice::SignAgain => {
                write!(f, "sign a copy of it again: codesign --force --sign - {}", word(&self.program))
            }
            Advice::OtherBuild => f.write_str("use an arm64 build of it"),
        }
    }
}

/// Quotes a path so that a shell reads it as one word.
fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@%=:,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
