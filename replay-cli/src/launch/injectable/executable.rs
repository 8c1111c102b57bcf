//! Classifies a file to be started: a Mach-O program, a script with its interpreter, or neither.
//!
//! The kernel decides by the first bytes. This code reads the same bytes in the same order, with
//! the limit of XNU (`exec_shell_imgact`): a first line of at most 512 bytes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::ReadRef;

use super::macho::{self, MachOSlice};

/// The longest shebang line that XNU accepts.
const FIRST_LINE_BYTES: u64 = 512;
/// The first two lines, because the second one may hand the script on to a Python.
const HEAD_BYTES: u64 = 2 * FIRST_LINE_BYTES;
/// The start of the second line that pip writes below `#!/bin/sh`. It does so if the path of its
/// Python is too long for a shebang line or has a space.
const HANDED_ON: &[u8] = b"'''exec' ";

/// What kind of executable a file is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExecutableKind {
    /// A Mach-O program with one or more processor architectures.
    MachO(Vec<MachOSlice>),
    /// A script with a shebang line.
    Script(ScriptHeader),
    /// Anything else, which a shell runs as a script of its own.
    Other,
}

/// The shebang line of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScriptHeader {
    /// The program that runs the script.
    pub interpreter: PathBuf,
    /// The arguments of the interpreter before the script.
    pub arguments: Vec<OsString>,
    /// The Python to which the second line hands the script on.
    pub handed_on_to: Option<PathBuf>,
}

impl ExecutableKind {
    /// Classifies a file by its bytes; `None` if it is truncated or malformed.
    pub fn read<'data, R: ReadRef<'data>>(file: R) -> Option<Self> {
        let len = file.len().ok()?;
        let head = file.read_bytes_at(0, len.min(HEAD_BYTES)).ok()?;
        if let Some(line) = head.strip_prefix(b"#!") {
            return ScriptHeader::read(line).map(Self::Script);
        }
        let magic: Option<&[u8; 4]> = head.first_chunk();
        match magic {
            // Mach-O of 32 and 64 bits in both byte orders, and universal files.
            Some(
                [0xce | 0xcf, 0xfa, 0xed, 0xfe]
                | [0xfe, 0xed, 0xfa, 0xce | 0xcf]
                | [0xca, 0xfe, 0xba, 0xbe | 0xbf],
            ) => macho::read_slices(file).map(Self::MachO),
            _ => Some(Self::Other),
        }
    }

    /// The header that stands for [`ExecutableKind::Other`]: `/bin/sh` runs the file.
    pub(super) fn shell_script() -> ScriptHeader {
        ScriptHeader { interpreter: PathBuf::from("/bin/sh"), arguments: Vec::new(), handed_on_to: None }
    }
}

impl ScriptHeader {
    fn read(behind_mark: &[u8]) -> Option<Self> {
        let mut lines = behind_mark.split(|byte| *byte == b'\n');
        let first = lines.next().filter(|line| line.len() as u64 <= FIRST_LINE_BYTES - 2)?;
        let mut words = first.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let interpreter = PathBuf::from(OsStr::from_bytes(words.next()?));
        let handed_on_to = lines.next().and_then(|line| handed_on_to(line.strip_prefix(HANDED_ON)?));
        let arguments = words.map(|word| OsStr::from_bytes(word).to_owned()).collect();
        Some(Self { interpreter, arguments, handed_on_to })
    }

    /// The name of the program that `env` searches on `PATH`; `None` for other interpreters.
    pub(super) fn program_of_env(&self) -> Option<&OsStr> {
        if self.interpreter.file_name() != Some(OsStr::new("env")) {
            return None;
        }
        let is_of_env = |word: &&OsString| {
            let bytes = word.as_encoded_bytes();
            bytes.starts_with(b"-") || bytes.contains(&b'=')
        };
        self.arguments.iter().find(|word| !is_of_env(word)).map(OsString::as_os_str)
    }
}

/// The absolute path at the start of the text, with or without quotes.
fn handed_on_to(text: &[u8]) -> Option<PathBuf> {
    let (end, path) = match text.split_first()? {
        (quote @ (b'"' | b'\''), rest) => (*quote, rest),
        _ => (b' ', text),
    };
    let path = Path::new(OsStr::from_bytes(path.split(|byte| *byte == end).next()?));
    path.is_absolute().then(|| path.to_owned())
}
