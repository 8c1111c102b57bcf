//! What a file that is to be started is: a program of macOS, a script and whose, or something else.
//!
//! Constraint: the system reads a few bytes and decides by them, and so must we. Consequence: the same bytes in the same order, with the
//! limit of XNU (`exec_shell_imgact`): a first line of at most 512 bytes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::ReadRef;

use super::macho::{self, MachOSlice};

/// Of a script, as far as the system looks for what runs it.
const FIRST_LINE_BYTES: u64 = 512;
/// Enough for the second line of a script that hands itself to a Python.
const HEAD_BYTES: u64 = 2 * FIRST_LINE_BYTES;
/// What installers write under `#!/bin/sh` where the path of their Python is too long for a first line, or has a space in it.
const HANDED_ON: &[u8] = b"'''exec' ";

/// A file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExecutableKind {
    /// Of macOS, for one processor or several.
    MachO(Vec<MachOSlice>),
    /// It names what runs it.
    Script(ScriptHeader),
    /// Neither: the shell is given it.
    Other,
}

/// The first line of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScriptHeader {
    /// What runs it.
    pub interpreter: PathBuf,
    /// What that is given before the script.
    pub arguments: Vec<OsString>,
    /// The Python that the second line hands the script to.
    pub handed_on_to: Option<PathBuf>,
}

impl ExecutableKind {
    /// What these bytes are; `None` if they are cut so short, or so wrong, that nobody can say.
    pub fn read<'data, R: ReadRef<'data>>(file: R) -> Option<Self> {
        let len = file.len().ok()?;
        let head = file.read_bytes_at(0, len.min(HEAD_BYTES)).ok()?;
        if let Some(line) = head.strip_prefix(b"#!") {
            return ScriptHeader::read(line).map(Self::Script);
        }
        let magic: Option<&[u8; 4]> = head.first_chunk();
        match magic {
            // Mach-O of 32 and 64 bits, in both orders of bytes, and files with several.
            Some(
                [0xce | 0xcf, 0xfa, 0xed, 0xfe]
                | [0xfe, 0xed, 0xfa, 0xce | 0xcf]
                | [0xca, 0xfe, 0xba, 0xbe | 0xbf],
            ) => macho::read_slices(file).map(Self::MachO),
            _ => Some(Self::Other),
        }
    }

    /// A file that the shell is given.
    pub(super) fn of_the_shell() -> ScriptHeader {
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

    /// The name of the program that `env` looks for, if that is what runs the script.
    pub(super) fn looked_for(&self) -> Option<&OsStr> {
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

/// The path that stands here, with or without quotes.
fn handed_on_to(text: &[u8]) -> Option<PathBuf> {
    let (end, path) = match text.split_first()? {
        (quote @ (b'"' | b'\''), rest) => (*quote, rest),
        _ => (b' ', text),
    };
    let path = Path::new(OsStr::from_bytes(path.split(|byte| *byte == end).next()?));
    path.is_absolute().then(|| path.to_owned())
}
