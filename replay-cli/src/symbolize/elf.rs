//! Reads an ELF file: its headers at once, its sections on demand.
//!
//! The file may have half a gigabyte, change while it is read, or be no ELF file. Sections are read
//! into memory of our own. A mapping would end the command with SIGBUS if the file were truncated.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::read::elf::{CompressionHeader, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, elf};

/// Longer sections are not read; counted after decompression.
const MAX_SECTION_BYTES: u64 = 8 << 30;
/// The largest ratio of decompression. Compilers reach 4 to 10, a decompression bomb 1000 and more.
const MAX_UNPACKING: u64 = 64;
/// The most note sections to search for a build ID. Files have a handful.
const MAX_NOTES: usize = 32;

/// An ELF file with its headers read.
#[derive(Debug)]
pub(crate) struct ElfImage {
    pub(crate) path: PathBuf,
    file: File,
    /// Empty if the file has none.
    pub(crate) build_id: Vec<u8>,
    /// The file name in `.gnu_debuglink`: a file with split debug information.
    pub(crate) debug_link: Option<String>,
    sections: Vec<ElfSection>,
    /// Addresses of executable sections. Also known if the code itself is in another file.
    pub(crate) code: Vec<Range<u64>>,
}

#[derive(Debug)]
struct ElfSection {
    name: Vec<u8>,
    kind: u32,
    offset: u64,
    len: u64,
    compression: SectionCompression,
}

#[derive(Clone, Copy, Debug)]
enum SectionCompression {
    None,
    Zlib,
    Zstd,
    Unknown,
}

/// Why a file cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ElfError {
    /// The file does not exist.
    Missing,
    /// The file cannot be read, or is no valid 64-bit ELF file.
    Unreadable,
}

impl ElfImage {
    /// Opens a file and reads its headers.
    pub(crate) fn open(path: &Path) -> Result<Self, ElfError> {
        let missing = |_| ElfError::Missing;
        // Checked before opening it, because opening a pipe blocks.
        if !std::fs::metadata(path).map_err(missing)?.is_file() {
            return Err(ElfError::Unreadable);
        }
        let file = File::open(path).map_err(|_| ElfError::Unreadable)?;
        let mut image = Self {
            path: path.to_owned(),
            file,
            build_id: Vec::new(),
            debug_link: None,
            sections: Vec::new(),
            code: Vec::new(),
        };
        image.read_headers().map_err(|_| ElfError::Unreadable)?;
        if let Some(link) = image.section(".gnu_debuglink") {
            let name = link.split(|byte| *byte == 0).next().unwrap_or_default();
            let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('/'));
            image.debug_link = name.map(str::to_owned);
        }
        Ok(image)
    }

    fn read_headers(&mut self) -> object::read::Result<()> {
        let cache = ReadCache::new(&self.file);
        let header = elf::FileHeader64::<Endianness>::parse(&cache)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, &cache)?;
        let mut notes_left = MAX_NOTES;
        for section in sections.iter() {
            if section.sh_flags(endian) & u64::from(elf::SHF_EXECINSTR) != 0 {
                let start = section.sh_addr(endian);
                self.code.push(start..start.saturating_add(section.sh_size(endian)));
            }
            let Some((offset, len)) = section.file_range(endian) else { continue };
            let (offset, len, compression) = match section.compression(endian, &cache)? {
                None => (offset, len, SectionCompression::None),
                Some((header, offset, len)) => match header.ch_type(endian) {
                    elf::ELFCOMPRESS_ZLIB => (offset, len, SectionCompression::Zlib),
                    elf::ELFCOMPRESS_ZSTD => (offset, len, SectionCompression::Zstd),
                    _ => (offset, len, SectionCompression::Unknown),
                },
            };
            let name = sections.section_name(endian, section)?.to_vec();
            self.sections.push(ElfSection { name, kind: section.sh_type(endian), offset, len, compression });
            if section.sh_type(endian) != elf::SHT_NOTE || notes_left == 0 {
                continue;
            }
            notes_left -= 1;
            if let Ok(Some(mut notes)) = section.notes(endian, &cache) {
                while let Ok(Some(note)) = notes.next() {
                    if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
                        self.build_id = note.desc().to_vec();
                    }
                }
            }
        }
        if self.build_id.is_empty() {
            // A file without section headers still has the program headers.
            let segments = header.program_headers(endian, &cache)?.iter();
            for segment in segments.filter(|segment| segment.p_type(endian) == elf::PT_NOTE).take(MAX_NOTES) {
                let Ok(Some(mut notes)) = segment.notes(endian, &cache) else { continue };
                while let Ok(Some(note)) = notes.next() {
                    if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
                        self.build_id = note.desc().to_vec();
                    }
                }
            }
        }
        Ok(())
    }

    /// True if the file has a `.debug_info` section.
    pub(crate) fn has_debug_info(&self) -> bool {
        self.sections.iter().any(|section| section.name == b".debug_info" && section.len > 0)
    }

    /// The decompressed bytes of a section. `None` if it is missing, malformed or too long.
    pub(crate) fn section(&self, name: &str) -> Option<Vec<u8>> {
        let section = self.sections.iter().find(|section| section.name == name.as_bytes())?;
        self.bytes(section)
    }

    /// The symbol table of this section type, and the string table of this name.
    pub(crate) fn symbol_table(&self, kind: u32, texts: &str) -> Option<(Vec<u8>, Vec<u8>)> {
        let section = self.sections.iter().find(|section| section.kind == kind)?;
        Some((self.bytes(section)?, self.section(texts)?))
    }

    fn bytes(&self, section: &ElfSection) -> Option<Vec<u8>> {
        let file_bytes = self.file.metadata().ok()?.len();
        if section.len > file_bytes.min(MAX_SECTION_BYTES) {
            return None;
        }
        let mut file = &self.file;
        file.seek(SeekFrom::Start(section.offset)).ok()?;
        let mut stored = Vec::with_capacity(section.len as usize);
        file.take(section.len).read_to_end(&mut stored).ok()?;
        if stored.len() as u64 != section.len {
            return None;
        }
        let most_bytes = MAX_SECTION_BYTES.min((16 << 20) + section.len * MAX_UNPACKING);
        match section.compression {
            SectionCompression::None => Some(stored),
            SectionCompression::Zlib => {
                miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(&stored, most_bytes as usize).ok()
            }
            SectionCompression::Zstd => {
                let mut unpacked = Vec::new();
                let decoder = zstd::stream::read::Decoder::new(&stored[..]).ok()?;
                decoder.take(most_bytes + 1).read_to_end(&mut unpacked).ok()?;
                (unpacked.len() as u64 <= most_bytes).then_some(unpacked)
            }
            SectionCompression::Unknown => None,
        }
    }
}
