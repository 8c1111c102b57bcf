//! Memory of other processes and other APIs.
//!
//! A simulated device is not shared between processes, so nothing of it can really be seen from another one -> what crosses the border is
//! a token that names the memory and its size; the process that opens it gets addresses of its own that read as zeros and are charged to
//! nobody, for the process that allocated the memory has been charged already.

use std::collections::BTreeMap;

use crate::rc::{Answer, INVALID_VALUE};

/// Bytes of a token: those of an IPC handle.
pub(crate) const TOKEN: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"simgpu\0\x01");

/// What a token names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Block,
    Physical,
    Pool,
}

/// The name of something in some process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) subject: Subject,
    pub(crate) pid: u32,
    pub(crate) device: u32,
    /// Address or handle in the process that has it.
    pub(crate) name: u64,
    pub(crate) size: u64,
}

impl Token {
    /// As it crosses the border.
    pub(crate) fn to_bytes(self) -> [u8; TOKEN] {
        let subject = match self.subject {
            Subject::Block => 1,
            Subject::Physical => 2,
            Subject::Pool => 3,
        };
        let words = [MAGIC, subject, u64::from(self.pid), u64::from(self.device), self.name, self.size];
        let mut bytes = [0; TOKEN];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads one that should name such a thing.
    pub(crate) fn from_bytes(bytes: &[u8; TOKEN], wanted: Subject) -> Answer<Self> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
            u64::from_le_bytes(word)
        };
        let subject = match word(1) {
            1 => Subject::Block,
            2 => Subject::Physical,
            3 => Subject::Pool,
            _ => return Err(INVALID_VALUE),
        };
        if word(0) != MAGIC || subject != wanted {
            return Err(INVALID_VALUE);
        }
        Ok(Self { subject, pid: word(2) as u32, device: word(3) as u32, name: word(4), size: word(5) })
    }
}

/// An opened block of another process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opened {
    pub(crate) token: Token,
    pub(crate) times: u32,
}

/// A multicast object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Multicast {
    pub(crate) wanted: u32,
    pub(crate) devices: Vec<u32>,
}

/// Everything that is not this process's own memory.
#[derive(Debug, Default)]
pub(crate) struct Foreign {
    /// Blocks of other processes, by the address they have here.
    pub(crate) opened: BTreeMap<u64, Opened>,
    /// Imported memory of other APIs, by handle: its size.
    pub(crate) external: BTreeMap<u64, u64>,
    /// Multicast objects, by handle.
    pub(crate) multicast: BTreeMap<u64, Multicast>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_and_nothing_else_passes_for_one() {
        let token = Token { subject: Subject::Physical, pid: 7, device: 1, name: 0x5100, size: 2 << 20 };
        assert_eq!(Token::from_bytes(&token.to_bytes(), Subject::Physical), Ok(token));
        assert_eq!(Token::from_bytes(&token.to_bytes(), Subject::Block), Err(INVALID_VALUE));
        assert_eq!(Token::from_bytes(&[0; TOKEN], Subject::Physical), Err(INVALID_VALUE));
    }
}
