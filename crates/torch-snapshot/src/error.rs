//! Why a snapshot cannot be read.

use thiserror::Error;

/// Why a snapshot cannot be read. The text continues a sentence that begins with the file's name.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Reading or unpacking failed.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The pickle would run code of the program that made it.
    #[error(
        "is a pickle that runs code (opcode {opcode} at byte {offset}); a snapshot needs none, so it was not read"
    )]
    Code {
        /// The name of the opcode.
        opcode: &'static str,
        /// Its place in the unpacked file.
        offset: u64,
    },
    /// The pickle or JSON breaks the rules of its format.
    #[error("is damaged at byte {offset}: {why}")]
    Damaged {
        /// Bytes of the unpacked file that were read.
        offset: u64,
        /// What is wrong there, as a phrase.
        why: &'static str,
    },
    /// The text is no JSON.
    #[error("is damaged: {0}")]
    Json(String),
    /// The file has more values than memory is spent on.
    #[error("has more than {limit} {what}: it is not a PyTorch snapshot")]
    TooLarge {
        /// What there are too many of.
        what: &'static str,
        /// The most that are read.
        limit: u64,
    },
    /// The archive cannot be read. The text continues "a zip archive".
    #[error("is a zip archive {0}")]
    Archive(&'static str),
    /// No file of the archive may be a snapshot.
    #[error("is a zip archive without a PyTorch snapshot; it holds {names}")]
    NoneInArchive {
        /// What it holds instead.
        names: String,
    },
    /// More than one file of the archive may be a snapshot.
    #[error(
        "is a zip archive with {count} files that may be snapshots ({names}); unpack it and give one of them"
    )]
    SeveralInArchive {
        /// How many there are.
        count: usize,
        /// The first of them.
        names: String,
    },
    /// The file holds something else.
    #[error("is not a PyTorch memory snapshot: {0}")]
    OtherContents(&'static str),
}
