//! Reading a whole trace file, block by block.
//!
//! The file may be gigabytes long, still growing, truncated, or damaged in the middle.
//! [`TraceReader`] reads it as a stream through a buffer of at most one block. Damage becomes an
//! [`Item`] that says where and how much; reading continues at the next valid block. Nothing is
//! skipped silently: a test flips every bit of a small file.

use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;

use crate::block::{
    BLOCK_HEADER_BYTES, BLOCK_SYNC, BlockHeader, BlockKind, FILE_HEADER_BYTES, FILE_MAGIC, PayloadUnpacker,
    file_version,
};
use crate::event::Event;
use crate::event_block::{ChunkSink, EventDecoder};
use crate::index::{Index, TraceTail};
use crate::meta::{End, Meta};
use crate::wire::Cursor;
use crate::{FORMAT_VERSION, definitions};

mod item;
mod limits;
mod source;

pub use item::{CorruptRegion, Item, OpenError};
use limits::{BlockFilter, UnpackBudget};
pub use source::TraceBytes;

/// Bytes to read at a time, at least.
const MIN_READ_BYTES: usize = 1 << 16;
/// Events in a chunk: half a megabyte.
const CHUNK_EVENTS: usize = 4096;

/// Iterates over the blocks of a trace, from any source of bytes.
#[derive(Debug)]
pub struct TraceReader<R> {
    source: R,
    /// Passes over a hole in the source, see [`TraceBytes::skip_hole`].
    skip_hole: fn(&mut R) -> u64,
    /// Unread bytes are those from `used` to `filled`; the first of them is at `offset` in the
    /// file.
    buffer: Vec<u8>,
    used: usize,
    filled: usize,
    offset: u64,
    at_end: bool,
    header_damage: Option<CorruptRegion>,
    io_error: Option<std::io::Error>,
    filter: BlockFilter,
    budget: UnpackBudget,
    unpacker: PayloadUnpacker,
    decoder: EventDecoder,
}

impl<R: Read> TraceReader<R> {
    /// Reads and checks the file header.
    pub fn new(source: R) -> Result<Self, OpenError> {
        let mut reader = Self::resume(source, 0);
        reader.fill(FILE_HEADER_BYTES + BLOCK_HEADER_BYTES);
        if let Some(error) = reader.io_error.take() {
            return Err(OpenError::Io(error));
        }
        let start = reader.unread();
        if start.is_empty() {
            return Err(OpenError::Empty);
        }
        let Some(header) = start.first_chunk::<FILE_HEADER_BYTES>() else {
            return if FILE_MAGIC.starts_with(&start[..start.len().min(8)]) {
                Err(OpenError::Empty)
            } else {
                Err(OpenError::NotATrace)
            };
        };
        match file_version(header) {
            Some(version) if version == FORMAT_VERSION => {}
            Some(version) => return Err(OpenError::Version(version)),
            // A flipped bit in the header must not cost the whole file: a valid block right after
            // it shows that this is a trace.
            None if header_at(&start[FILE_HEADER_BYTES..]).is_some() => {
                let why = "the file header is damaged".to_owned();
                reader.header_damage =
                    Some(CorruptRegion { offset: 0, len: FILE_HEADER_BYTES as u64, why, is_in_block: false });
            }
            None => return Err(OpenError::NotATrace),
        }
        reader.consume(FILE_HEADER_BYTES);
        Ok(reader)
    }

    /// Reads from a block in the middle of a trace. `source` begins at this offset in the file.
    pub fn resume(source: R, offset: u64) -> Self {
        Self {
            source,
            skip_hole: |_| 0,
            buffer: Vec::new(),
            used: 0,
            filled: 0,
            offset,
            at_end: false,
            header_damage: None,
            io_error: None,
            filter: BlockFilter::All,
            budget: UnpackBudget::default(),
            unpacker: PayloadUnpacker::default(),
            decoder: EventDecoder::default(),
        }
    }

    /// Passes over the holes of a sparse file at once where it searches for the next block.
    #[must_use]
    pub fn passing_holes(mut self) -> Self
    where
        R: TraceBytes,
    {
        self.skip_hole = R::skip_hole;
        self
    }

    /// Skips blocks of events without unpacking them: each is an [`Item::Skipped`].
    #[must_use]
    pub fn without_events(mut self) -> Self {
        self.filter = BlockFilter::AllButEvents;
        self
    }

    /// Skips all blocks but those of events: each is an [`Item::Skipped`].
    #[must_use]
    pub fn events_only(mut self) -> Self {
        self.filter = BlockFilter::EventsOnly;
        self
    }

    /// Like [`Iterator::next`], but passes events to `sink`, in chunks that stay in the processor's
    /// caches; their block becomes an [`Item::Skipped`]. `sink` returns memory for the next chunk.
    /// If it breaks, the rest of the block is skipped. A damaged block may follow some of its
    /// events.
    pub fn next_with_event_chunks(
        &mut self,
        sink: &mut dyn FnMut(Vec<Event>) -> ControlFlow<(), Vec<Event>>,
    ) -> Option<Item> {
        self.next_item(CHUNK_EVENTS, sink)
    }

    /// Offset in the file of the next block.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn unread(&self) -> &[u8] {
        &self.buffer[self.used..self.filled]
    }

    fn consume(&mut self, bytes: usize) {
        self.used += bytes;
        self.offset += bytes as u64;
    }

    /// Tries to buffer at least `wanted` unread bytes.
    fn fill(&mut self, wanted: usize) {
        self.buffer.copy_within(self.used..self.filled, 0);
        self.filled -= self.used;
        self.used = 0;
        if self.buffer.len() < wanted.max(MIN_READ_BYTES) {
            self.buffer.resize(wanted.max(MIN_READ_BYTES), 0);
        }
        while self.filled < wanted && !self.at_end {
            match self.source.read(&mut self.buffer[self.filled..]) {
                Ok(0) => self.at_end = true,
                Ok(bytes) => self.filled += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.io_error = Some(error);
                    self.at_end = true;
                }
            }
        }
    }

    /// Skips to the next valid block header, or to the end, and returns what it skipped.
    fn resync(&mut self) -> CorruptRegion {
        let (begin, mut hole_bytes) = (self.offset, 0);
        self.consume(1);
        loop {
            let unread = self.unread();
            let last_start = unread.len().saturating_sub(BLOCK_HEADER_BYTES - 1);
            let found = (0..last_start)
                .find(|&at| unread[at..].starts_with(&BLOCK_SYNC) && header_at(&unread[at..]).is_some());
            if let Some(at) = found {
                self.consume(at);
                break;
            }
            self.consume(last_start);
            if self.at_end {
                self.consume(self.unread().len());
                break;
            }
            // The unread bytes may be the start of a header. Nothing of it lies in a hole if they
            // are zeros like the hole.
            if self.unread().iter().all(|byte| *byte == 0) {
                let skipped = (self.skip_hole)(&mut self.source);
                hole_bytes += skipped;
                self.offset += skipped;
            }
            self.fill(MIN_READ_BYTES);
        }
        let why = match hole_bytes {
            0 => "no valid block header".to_owned(),
            bytes => {
                format!("no valid block header; {bytes} of these bytes are a hole in the file, without data")
            }
        };
        CorruptRegion { offset: begin, len: self.offset - begin, why, is_in_block: false }
    }

    fn next_item(&mut self, chunk_events: usize, sink: &mut ChunkSink<'_>) -> Option<Item> {
        if let Some(damage) = self.header_damage.take() {
            return Some(Item::CorruptRegion(damage));
        }
        if self.unread().len() < BLOCK_HEADER_BYTES {
            self.fill(BLOCK_HEADER_BYTES);
        }
        if let Some(error) = self.io_error.take() {
            let why = format!("reading the file failed: {error}");
            return Some(Item::CorruptRegion(CorruptRegion {
                offset: self.offset,
                len: 0,
                why,
                is_in_block: true,
            }));
        }
        let unread = self.unread();
        if unread.is_empty() {
            return None;
        }
        let Some(header) = header_at(unread) else {
            let sync = &BLOCK_SYNC[..unread.len().min(4)];
            if unread.len() < BLOCK_HEADER_BYTES && unread.starts_with(sync) {
                return Some(self.truncated_block());
            }
            return Some(Item::CorruptRegion(self.resync()));
        };
        let total = BLOCK_HEADER_BYTES + header.stored_len;
        if unread.len() < total {
            self.fill(total);
            if self.unread().len() < total {
                return Some(self.truncated_block());
            }
        }
        let offset = self.offset;
        if !self.filter.includes(header.kind) {
            self.consume(total);
            return Some(Item::Skipped(header.kind));
        }
        if let Err(why) = self.budget.charge(&header, offset + total as u64) {
            self.consume(total);
            return Some(Item::CorruptRegion(CorruptRegion {
                offset,
                len: total as u64,
                why,
                is_in_block: true,
            }));
        }
        let item = self.decode_block(&header, total, chunk_events, sink);
        self.consume(total);
        Some(item.unwrap_or_else(|why| {
            Item::CorruptRegion(CorruptRegion { offset, len: total as u64, why, is_in_block: true })
        }))
    }

    /// Decodes the complete block at the present offset. Events go to `sink`.
    fn decode_block(
        &mut self,
        header: &BlockHeader,
        total: usize,
        chunk_events: usize,
        sink: &mut ChunkSink<'_>,
    ) -> Result<Item, String> {
        let stored = &self.buffer[self.used + BLOCK_HEADER_BYTES..self.used + total];
        let payload = self.unpacker.unpack(header, stored).map_err(|error| error.to_string())?;
        if !header.kind.is_events() {
            return decode_block(header.kind, payload);
        }
        let events = Cursor::new(payload).varint().map_err(|error| error.to_string())?;
        self.budget.charge_events(events, self.offset + total as u64)?;
        let decoded = self.decoder.decode(payload, chunk_events, sink);
        decoded.map(|()| Item::Skipped(header.kind)).map_err(|error| error.to_string())
    }

    fn truncated_block(&mut self) -> Item {
        let offset = self.offset;
        let kind = self.unread().get(BLOCK_SYNC.len()).copied().map(BlockKind);
        self.consume(self.unread().len());
        Item::TruncatedBlock { offset, kind }
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        let mut all = None;
        let item = self.next_item(usize::MAX, &mut |events| {
            all = Some(events);
            ControlFlow::Continue(Vec::new())
        })?;
        Some(all.map_or(item, Item::Events))
    }
}

fn header_at(bytes: &[u8]) -> Option<BlockHeader> {
    BlockHeader::decode(bytes.first_chunk()?)
}

fn decode_block(kind: BlockKind, payload: &[u8]) -> Result<Item, String> {
    let decoded = match kind {
        BlockKind::META => return Meta::decode(payload).map(Item::Meta).map_err(|error| error.to_string()),
        BlockKind::END => return End::decode(payload).map(Item::End).map_err(|error| error.to_string()),
        BlockKind::CODES => definitions::decode_codes(payload).map(Item::Codes),
        BlockKind::PY_NODES => definitions::decode_py_nodes(payload).map(Item::PyNodes),
        BlockKind::FRAME_LINKS => definitions::decode_frame_links(payload).map(Item::FrameLinks),
        BlockKind::NATIVE_NODES => definitions::decode_native_nodes(payload).map(Item::NativeNodes),
        BlockKind::MODULES => definitions::decode_modules(payload).map(Item::Modules),
        BlockKind::NAMES => definitions::decode_names(payload).map(Item::Names),
        BlockKind::INDEX => Index::decode(payload).map(Item::Index),
        BlockKind::TAIL => TraceTail::decode(payload).map(Item::Tail),
        kind => Ok(Item::UnknownBlock(kind)),
    };
    decoded.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
