//! Checking and unpacking a block's payload.

use thiserror::Error;

use super::pieces::unpack_pieces_into;
use super::{BlockHeader, ENCODING_PIECES, ENCODING_RAW, ENCODING_ZSTD};

/// Why the payload under a valid block header cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The payload's checksum does not match.
    #[error("the payload's checksum does not match")]
    Checksum,
    /// The payload uses an unknown encoding.
    #[error("the payload uses encoding {0}, which this version does not know")]
    Encoding(u8),
    /// The payload does not decompress, or not to the length in the header.
    #[error("the payload does not decompress to the length in its header")]
    Decompress,
}

/// Unpacks payloads into memory that it reuses: allocating it takes as long as unpacking a small
/// block.
#[derive(Default)]
pub(crate) struct PayloadUnpacker {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    payload: Vec<u8>,
}

impl std::fmt::Debug for PayloadUnpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PayloadUnpacker").finish_non_exhaustive()
    }
}

impl PayloadUnpacker {
    /// As [`BlockHeader::unpack`]. A payload that is stored as it is is not copied.
    pub(crate) fn unpack<'a>(
        &'a mut self,
        header: &BlockHeader,
        stored: &'a [u8],
    ) -> Result<&'a [u8], PayloadError> {
        if crc32c::crc32c(stored) != header.payload_crc {
            return Err(PayloadError::Checksum);
        }
        let raw = match header.encoding {
            ENCODING_RAW => stored,
            ENCODING_ZSTD => {
                self.payload.clear();
                self.payload.reserve_exact(header.raw_len);
                let zstd = self.zstd.get_or_insert_default();
                let unpacked = zstd.decompress_to_buffer(stored, &mut self.payload);
                unpacked.map_err(|_| PayloadError::Decompress)?;
                &self.payload
            }
            ENCODING_PIECES => {
                let zstd = self.zstd.get_or_insert_default();
                self.payload.resize(header.raw_len, 0);
                unpack_pieces_into(stored, zstd, &mut self.payload).ok_or(PayloadError::Decompress)?;
                &self.payload
            }
            other => return Err(PayloadError::Encoding(other)),
        };
        if raw.len() == header.raw_len { Ok(raw) } else { Err(PayloadError::Decompress) }
    }
}
