//! Memory of other processes and other APIs.
//!
//! Processes do not share a simulated device. A token names memory and its size; the process that
//! opens it gets addresses that read as zeros. They are not charged, because the allocating process
//! already was.

use std::collections::BTreeMap;

use crate::result_code::{ApiResult, INVALID_VALUE};

/// Size of a token, in bytes; equal to an IPC handle's.
pub(crate) const TOKEN: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"simgpu\0\x01");

/// The kind of object that a token names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    DeviceBlock,
    Physical,
    Pool,
}

/// Names an object of some process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) subject: TokenKind,
    pub(crate) pid: u32,
    pub(crate) device: u32,
    /// Address or handle in the owning process.
    pub(crate) name: u64,
    pub(crate) size: u64,
}

impl Token {
    /// Encodes the token for another process.
    pub(crate) fn to_bytes(self) -> [u8; TOKEN] {
        let subject = match self.subject {
            TokenKind::DeviceBlock => 1,
            TokenKind::Physical => 2,
            TokenKind::Pool => 3,
        };
        let words = [MAGIC, subject, u64::from(self.pid), u64::from(self.device), self.name, self.size];
        let mut bytes = [0; TOKEN];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a token; fails if it names another kind of object.
    pub(crate) fn from_bytes(bytes: &[u8; TOKEN], wanted: TokenKind) -> ApiResult<Self> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
            u64::from_le_bytes(word)
        };
        let subject = match word(1) {
            1 => TokenKind::DeviceBlock,
            2 => TokenKind::Physical,
            3 => TokenKind::Pool,
            _ => return Err(INVALID_VALUE),
        };
        if word(0) != MAGIC || subject != wanted {
            return Err(INVALID_VALUE);
        }
        Ok(Self { subject, pid: word(2) as u32, device: word(3) as u32, name: word(4), size: word(5) })
    }
}

/// A block of another process, opened here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenedBlock {
    pub(crate) token: Token,
    pub(crate) times: u32,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Multicast {
    pub(crate) wanted: u32,
    pub(crate) devices: Vec<u32>,
}

/// All memory that is not this process's own.
#[derive(Debug, Default)]
pub(crate) struct Foreign {
    /// Blocks of other processes, by local address.
    pub(crate) opened: BTreeMap<u64, OpenedBlock>,
    /// Sizes of memory imported from other APIs, by handle.
    pub(crate) external: BTreeMap<u64, u64>,
    /// Multicast objects, by handle.
    pub(crate) multicast: BTreeMap<u64, Multicast>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_round_trips_and_other_bytes_are_refused() {
        let token = Token { subject: TokenKind::Physical, pid: 7, device: 1, name: 0x5100, size: 2 << 20 };
        assert_eq!(Token::from_bytes(&token.to_bytes(), TokenKind::Physical), Ok(token));
        assert_eq!(Token::from_bytes(&token.to_bytes(), TokenKind::DeviceBlock), Err(INVALID_VALUE));
        assert_eq!(Token::from_bytes(&[0; TOKEN], TokenKind::Physical), Err(INVALID_VALUE));
    }
}
