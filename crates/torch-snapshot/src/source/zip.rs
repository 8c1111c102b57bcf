//! The entries of a zip archive: GitHub takes attachments as zip, and `torch.save` writes zip.
//!
//! Entries are found by the directory at the end of the file, as other readers do: sizes in front
//! of an entry may be missing. The layout is in APPNOTE 6.3.10, sections 4.3.7 to 4.3.16:
//! <https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT>

use std::io::{self, ErrorKind, Read, SeekFrom};

use flate2::CrcReader;
use flate2::read::DeflateDecoder;

use super::limit::LimitedRead;
use super::{SNIFF_BYTES, SeekableRead, SnapshotForm, form_of, may_begin_snapshot};
use crate::error::SnapshotError;

/// The first bytes of an archive with entries.
pub(super) const ZIP_MAGIC: &[u8] = b"PK\x03\x04";
const ENTRY_MAGIC: &[u8] = b"PK\x01\x02";
const END_MAGIC: &[u8] = b"PK\x05\x06";
const END64_MAGIC: &[u8] = b"PK\x06\x06";
const LOCATOR64_MAGIC: &[u8] = b"PK\x06\x07";

const LOCAL_HEADER_BYTES: u64 = 30;
const ENTRY_BYTES: usize = 46;
const END_BYTES: usize = 22;
const END64_BYTES: usize = 56;
const LOCATOR64_BYTES: usize = 20;
/// Longest comment behind the end record.
const MAX_COMMENT_BYTES: usize = u16::MAX as usize;
/// Longest directory that is read: about a million entries.
const MAX_DIRECTORY_BYTES: u64 = 64 << 20;
/// Most entries that are searched for a snapshot.
const MAX_ENTRIES: usize = 10_000;
/// Names that an error lists.
const MAX_NAMES: usize = 3;
/// The pickle in a file of `torch.save`.
const TORCH_SAVE_NAME: &str = "data.pkl";
/// The extra field with sizes of 64 bits.
const EXTRA_ZIP64: u16 = 1;
const FLAG_ENCRYPTED: u16 = 1;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;

const DAMAGED: SnapshotError = SnapshotError::Archive("that is damaged or was cut");

/// A file of an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ZipEntry {
    name: String,
    method: u16,
    is_encrypted: bool,
    crc32: u32,
    packed_bytes: u64,
    bytes: u64,
    header_at: u64,
}

impl ZipEntry {
    /// True for the pickle in a file of `torch.save`.
    pub(super) fn is_torch_save(&self) -> bool {
        self.name.rsplit('/').next() == Some(TORCH_SAVE_NAME)
    }

    /// True for a folder, and for what macOS adds for each file.
    fn is_no_file(&self) -> bool {
        self.name.ends_with('/') || self.name.starts_with("__MACOSX/")
    }
}

/// An archive and its directory.
pub(super) struct ZipArchive<'a> {
    file: &'a mut dyn SeekableRead,
    entries: Vec<ZipEntry>,
    /// Bytes in front of the archive.
    offset: u64,
}

impl<'a> ZipArchive<'a> {
    pub(super) fn open(file: &'a mut dyn SeekableRead) -> Result<Self, SnapshotError> {
        let directory = Directory::find(file)?;
        let mut bytes = vec![0; directory.bytes as usize];
        file.seek(SeekFrom::Start(directory.at))?;
        file.read_exact(&mut bytes).map_err(cut_is_damage)?;
        let mut entries = Vec::new();
        let mut rest = &bytes[..];
        while rest.starts_with(ENTRY_MAGIC) && entries.len() < MAX_ENTRIES {
            let (entry, after) = parse_entry(rest).ok_or(DAMAGED)?;
            entries.push(entry);
            rest = after;
        }
        entries.retain(|entry| !entry.is_no_file());
        Ok(Self { file, entries, offset: directory.offset })
    }

    /// The only entry that may be a snapshot. JSON counts if there is nothing else: many files are
    /// JSON.
    pub(super) fn find_snapshot(&mut self) -> Result<ZipEntry, SnapshotError> {
        let (mut found, mut json) = (Vec::new(), Vec::new());
        for entry in self.entries.clone() {
            let mut first = Vec::new();
            // An entry that cannot be unpacked matters only if it is the snapshot.
            let is_read = match self.read(&entry) {
                Ok(bytes) => bytes.take(SNIFF_BYTES as u64).read_to_end(&mut first).is_ok(),
                Err(_) => false,
            };
            if form_of(&first) == Some(SnapshotForm::Json) {
                json.push(entry);
            } else if may_begin_snapshot(&first) || !is_read && self.entries.len() == 1 {
                found.push(entry);
            }
        }
        if found.is_empty() {
            found = json;
        }
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => Err(SnapshotError::NoneInArchive { names: list_names(&self.entries) }),
            count => Err(SnapshotError::SeveralInArchive { count, names: list_names(&found) }),
        }
    }

    /// The unpacked bytes of an entry. Their checksum is compared at the end.
    pub(super) fn read<'b>(&'b mut self, entry: &ZipEntry) -> Result<Box<dyn Read + 'b>, SnapshotError> {
        if entry.is_encrypted {
            return Err(SnapshotError::Archive("with a password; unpack it first"));
        }
        let header_at = self.offset.checked_add(entry.header_at).ok_or(DAMAGED)?;
        self.file.seek(SeekFrom::Start(header_at))?;
        let mut header = [0; LOCAL_HEADER_BYTES as usize];
        self.file.read_exact(&mut header).map_err(cut_is_damage)?;
        if !header.starts_with(ZIP_MAGIC) {
            return Err(DAMAGED);
        }
        // The extra field here may be longer than that in the directory.
        let between =
            u64::from(u16_at(&header, 26).unwrap_or(0)) + u64::from(u16_at(&header, 28).unwrap_or(0));
        self.file.seek(SeekFrom::Start(header_at + LOCAL_HEADER_BYTES + between))?;
        let packed = (&mut *self.file).take(entry.packed_bytes);
        let unpacked: Box<dyn Read + 'b> = match entry.method {
            STORED => Box::new(packed),
            DEFLATED => Box::new(LimitedRead::new(DeflateDecoder::new(packed))),
            _ => {
                return Err(SnapshotError::Archive("with a compression other than deflate; unpack it first"));
            }
        };
        let unpacked = CrcReader::new(unpacked);
        Ok(Box::new(CheckedEntry { unpacked, crc32: entry.crc32, bytes: entry.bytes, read_bytes: 0 }))
    }
}

/// The first names, as a text.
fn list_names(entries: &[ZipEntry]) -> String {
    let names: Vec<&str> = entries.iter().take(MAX_NAMES).map(|entry| &*entry.name).collect();
    let more = entries.len().saturating_sub(MAX_NAMES);
    match (names.is_empty(), more) {
        (true, _) => "nothing".to_owned(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{} and {more} more", names.join(", ")),
    }
}

/// An entry that compares its checksum when it ends.
struct CheckedEntry<R> {
    unpacked: CrcReader<R>,
    crc32: u32,
    bytes: u64,
    read_bytes: u64,
}

impl<R: Read> Read for CheckedEntry<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.unpacked.read(buffer)?;
        self.read_bytes += read as u64;
        let is_end = read == 0 && !buffer.is_empty();
        if is_end && (self.unpacked.crc().sum() != self.crc32 || self.read_bytes != self.bytes) {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "the archive is damaged: a checksum is wrong",
            ));
        }
        Ok(read)
    }
}

/// Where the directory lies.
struct Directory {
    at: u64,
    bytes: u64,
    /// Bytes in front of the archive, which its positions do not count.
    offset: u64,
}

impl Directory {
    fn find(file: &mut dyn SeekableRead) -> Result<Self, SnapshotError> {
        let file_bytes = file.seek(SeekFrom::End(0))?;
        let tail_bytes = file_bytes.min((LOCATOR64_BYTES + END_BYTES + MAX_COMMENT_BYTES) as u64);
        let tail_at = file_bytes - tail_bytes;
        let mut tail = vec![0; tail_bytes as usize];
        file.seek(SeekFrom::Start(tail_at))?;
        file.read_exact(&mut tail).map_err(cut_is_damage)?;
        let end = tail.windows(END_MAGIC.len()).rposition(|part| part == END_MAGIC).ok_or(DAMAGED)?;
        let record = &tail[end..];
        let (Some(bytes), Some(at)) = (u32_at(record, 12), u32_at(record, 16)) else { return Err(DAMAGED) };
        let (mut bytes, mut at, mut end_at) = (u64::from(bytes), u64::from(at), tail_at + end as u64);
        let locator = end.checked_sub(LOCATOR64_BYTES).map(|from| &tail[from..end]);
        if let Some(locator) = locator.filter(|locator| locator.starts_with(LOCATOR64_MAGIC)) {
            end_at = u64_at(locator, 8).ok_or(DAMAGED)?;
            let mut record = [0; END64_BYTES];
            file.seek(SeekFrom::Start(end_at))?;
            file.read_exact(&mut record).map_err(cut_is_damage)?;
            if !record.starts_with(END64_MAGIC) {
                return Err(DAMAGED);
            }
            (bytes, at) = (u64_at(&record, 40).ok_or(DAMAGED)?, u64_at(&record, 48).ok_or(DAMAGED)?);
        }
        // The directory ends where the end record begins.
        let begins_at = end_at.checked_sub(bytes).ok_or(DAMAGED)?;
        let offset = begins_at.checked_sub(at).ok_or(DAMAGED)?;
        if bytes > MAX_DIRECTORY_BYTES {
            return Err(SnapshotError::Archive("with too many files; unpack it first"));
        }
        Ok(Self { at: begins_at, bytes, offset })
    }
}

/// The first entry of a directory, and what follows it.
fn parse_entry(bytes: &[u8]) -> Option<(ZipEntry, &[u8])> {
    let rest = bytes.get(ENTRY_BYTES..)?;
    let lens = [u16_at(bytes, 28)?, u16_at(bytes, 30)?, u16_at(bytes, 32)?].map(usize::from);
    let (name, rest) = rest.split_at_checked(lens[0])?;
    let (extra, rest) = rest.split_at_checked(lens[1])?;
    let rest = rest.get(lens[2]..)?;
    let mut sizes64 = sizes_of_64_bits(extra);
    // A field of 32 bits that is full stands for the next one of the extra field.
    let mut wide = |at: usize| -> Option<u64> {
        match u32_at(bytes, at)? {
            u32::MAX => {
                let (first, rest) = sizes64.split_at_checked(8)?;
                sizes64 = rest;
                u64_at(first, 0)
            }
            number => Some(u64::from(number)),
        }
    };
    let (unpacked_bytes, packed_bytes, header_at) = (wide(24)?, wide(20)?, wide(42)?);
    let entry = ZipEntry {
        name: String::from_utf8_lossy(name).into_owned(),
        method: u16_at(bytes, 10)?,
        is_encrypted: u16_at(bytes, 8)? & FLAG_ENCRYPTED != 0,
        crc32: u32_at(bytes, 16)?,
        packed_bytes,
        bytes: unpacked_bytes,
        header_at,
    };
    Some((entry, rest))
}

/// The numbers in the extra field for sizes of 64 bits; empty if there is none.
fn sizes_of_64_bits(mut extra: &[u8]) -> &[u8] {
    while let (Some(kind), Some(len)) = (u16_at(extra, 0), u16_at(extra, 2)) {
        let Some((field, rest)) = extra[4..].split_at_checked(usize::from(len)) else { break };
        if kind == EXTRA_ZIP64 {
            return field;
        }
        extra = rest;
    }
    &[]
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn cut_is_damage(error: io::Error) -> SnapshotError {
    if error.kind() == ErrorKind::UnexpectedEof { DAMAGED } else { error.into() }
}
