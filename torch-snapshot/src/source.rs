//! The bytes of a snapshot: recognized by content, and unpacked while they are read.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

use crate::error::SnapshotError;

/// Bytes at the start of a file that [`looks_like_snapshot`] needs.
pub const SNIFF_BYTES: usize = 512;

const BUFFER_BYTES: usize = 1 << 18;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The opcode that begins every pickle of protocol 2 and above.
const PROTO: u8 = 0x80;

/// The form of an unpacked snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SnapshotForm {
    Pickle,
    Json,
}

/// A snapshot without its compression.
pub(crate) struct PlainSnapshot<'a> {
    pub(crate) form: SnapshotForm,
    pub(crate) bytes: Box<dyn BufRead + 'a>,
}

/// True if a file with these first bytes may be a snapshot: a pickle or JSON, possibly in gzip.
pub fn looks_like_snapshot(first: &[u8]) -> bool {
    if !first.starts_with(&GZIP_MAGIC) {
        return form_of(first).is_some();
    }
    // The first bytes may end inside the compressed data; what comes before is enough.
    let mut start = [0; SNIFF_BYTES];
    let mut unpacked = MultiGzDecoder::new(first);
    let mut len = 0;
    while let Ok(read @ 1..) = unpacked.read(&mut start[len..]) {
        len += read;
    }
    form_of(&start[..len]).is_some()
}

fn form_of(first: &[u8]) -> Option<SnapshotForm> {
    match first {
        [PROTO, 2..=5, ..] => Some(SnapshotForm::Pickle),
        _ => match first.iter().find(|byte| !byte.is_ascii_whitespace())? {
            b'{' | b'[' => Some(SnapshotForm::Json),
            _ => None,
        },
    }
}

/// Reads the first bytes and removes the compression.
pub(crate) fn unpack(input: &mut dyn Read) -> Result<PlainSnapshot<'_>, SnapshotError> {
    let (first, rest) = read_first(input)?;
    let bytes: Box<dyn BufRead + '_> = if first.get_ref().starts_with(&GZIP_MAGIC) {
        let packed = BufReader::with_capacity(BUFFER_BYTES, first.chain(rest));
        let mut unpacked = MultiGzDecoder::new(packed);
        let (first, _) = read_first(&mut unpacked)?;
        Box::new(with_buffer(first.chain(unpacked)))
    } else {
        Box::new(with_buffer(first.chain(rest)))
    };
    let mut bytes = bytes;
    let form = form_of(bytes.fill_buf()?)
        .ok_or(SnapshotError::OtherContents("it is neither a pickle of protocol 2 to 5 nor JSON"))?;
    Ok(PlainSnapshot { form, bytes })
}

fn with_buffer<R: Read>(bytes: Chain<Cursor<Vec<u8>>, R>) -> BufReader<Chain<Cursor<Vec<u8>>, R>> {
    BufReader::with_capacity(BUFFER_BYTES, bytes)
}

/// The first [`SNIFF_BYTES`], so that the first buffer shows the form even if reads are short.
fn read_first<R: Read>(mut input: R) -> io::Result<(Cursor<Vec<u8>>, R)> {
    let mut first = Vec::with_capacity(SNIFF_BYTES);
    input.by_ref().take(SNIFF_BYTES as u64).read_to_end(&mut first)?;
    Ok((Cursor::new(first), input))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_recognized_by_their_first_bytes() {
        for first in [&b"\x80\x02}"[..], b"\x80\x05\x95", b"{\"segments\"", b" \n[{"] {
            assert!(looks_like_snapshot(first), "{first:?}");
        }
        for first in [&b""[..], b"\x80", b"\x80\x06", b"\x80\x01", b"gpumtrc\n", b"PK\x03\x04", b"\x1f\x8b"] {
            assert!(!looks_like_snapshot(first), "{first:?}");
        }
    }
}
