//! What keeps us out, in one sentence, and what its reader can do.

use std::fmt;
use std::path::{Path, PathBuf};

use super::entitlements::{ALLOW_LIBRARIES, ALLOW_VARIABLES};
use super::macho::CpuArchitecture;

/// A program on the way that lets no library from outside in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InjectionBlocker {
    /// Its file, over all links.
    pub program: PathBuf,
    /// Why.
    pub reason: BlockReason,
    /// What helps.
    pub advice: Advice,
}

/// Why a program lets nobody in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockReason {
    /// It is part of macOS.
    System,
    /// It runs with the rights of its file's owner or group.
    SetId,
    /// It says that it is to be left alone: a segment `__RESTRICT`, or that flag of its signature.
    Restricted,
    /// The hardened runtime, without [`ALLOW_VARIABLES`].
    Hardened,
    /// It takes libraries of its own team only.
    Validates,
    /// It is for this processor, and the library is not.
    Architecture(CpuArchitecture),
}

/// What helps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Advice {
    /// To start the script's interpreter without what stands between.
    Directly {
        /// Which lets us in.
        interpreter: PathBuf,
        /// What it is to run.
        script: PathBuf,
    },
    /// To take a Python that is not Apple's.
    OtherPython,
    /// To start `gpumemtrace run` behind it.
    Behind,
    /// To sign a copy of one's own.
    SignAgain,
    /// To take a build for this processor.
    OtherBuild,
}

impl fmt::Display for InjectionBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.program.display())?;
        match self.reason {
            BlockReason::System => f.write_str(
                "is part of macOS, which takes DYLD_INSERT_LIBRARIES away from it and from all that it starts (System Integrity \
                 Protection)",
            ),
            BlockReason::SetId => {
                f.write_str("runs with the rights of its file's owner, and macOS takes DYLD_INSERT_LIBRARIES away from such programs")
            }
            BlockReason::Restricted => {
                f.write_str("is marked as restricted, and macOS takes DYLD_INSERT_LIBRARIES away from such programs")
            }
            BlockReason::Hardened => write!(
                f,
                "has the hardened runtime without the entitlement {ALLOW_VARIABLES}: macOS takes DYLD_INSERT_LIBRARIES away from it"
            ),
            BlockReason::Validates => write!(
                f,
                "has library validation (no entitlement {ALLOW_LIBRARIES}): macOS refuses to load a library of somebody else's into it"
            ),
            BlockReason::Architecture(processor) => write!(
                f,
                "is for {}, and the library for arm64, so that it cannot be loaded",
                processor.name()
            ),
        }?;
        f.write_str("; ")?;
        match &self.advice {
            Advice::Directly { interpreter, script } => {
                write!(f, "use: gpumemtrace run -- {} {}", word(interpreter), word(script))
            }
            Advice::OtherPython => {
                f.write_str("use a Python of Homebrew, conda, uv or python.org, for arm64")
            }
            Advice::Behind => f.write_str("name the program that it starts: gpumemtrace run -- PROGRAM"),
            Advice::SignAgain => {
                write!(f, "sign a copy of it without: codesign --force --sign - {}", word(&self.program))
            }
            Advice::OtherBuild => f.write_str("use a build of it for arm64"),
        }
    }
}

/// As a shell takes it for one word.
fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@%=:,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
