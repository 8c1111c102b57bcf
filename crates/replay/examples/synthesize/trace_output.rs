//! The trace file, written block by block as a recorder writes it.

use std::fs::File;
use std::io::{BufWriter, Write};

use gpumemtrace_format::block::{BlockKind, BlockPacker, encode_block, file_header};
use gpumemtrace_format::index::{IndexBuilder, TraceTail};
use gpumemtrace_format::{End, Event, event_block};

const ZSTD_LEVEL: i32 = 3;
/// Bits by which the recorder shifts timestamps.
const TIME_SHIFT: u8 = 10;
/// Number of event blocks between two indices of the recorder.
const BLOCKS_PER_INDEX: usize = 16;

/// The trace file, with index blocks as a recorder writes them.
pub(crate) struct TraceOutput {
    file: BufWriter<File>,
    bytes: u64,
    index: IndexBuilder,
    encoder: event_block::EventEncoder,
    packer: BlockPacker,
}

impl TraceOutput {
    pub(crate) fn create(path: &str) -> std::io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&file_header())?;
        Ok(Self {
            file,
            bytes: file_header().len() as u64,
            index: IndexBuilder::default(),
            encoder: event_block::EventEncoder::new(TIME_SHIFT),
            packer: BlockPacker::new(ZSTD_LEVEL),
        })
    }

    fn write(&mut self, block: &[u8]) -> std::io::Result<()> {
        self.bytes += block.len() as u64;
        self.file.write_all(block)
    }

    pub(crate) fn add(&mut self, kind: BlockKind, payload: &[u8], rows: usize) -> std::io::Result<()> {
        let block = encode_block(kind, payload, ZSTD_LEVEL);
        self.index.add_block(kind, self.bytes, block.len(), rows);
        self.write(&block)
    }

    pub(crate) fn add_events(&mut self, events: &[Event]) -> std::io::Result<()> {
        self.encoder.push(events);
        let rows = self.encoder.finish();
        let block = self.packer.encode_block(BlockKind::EVENTS, &rows.payload, &rows.split_offsets);
        self.index.add_event_block(block.len(), events);
        self.write(&block)?;
        if self.index.pending() >= BLOCKS_PER_INDEX { self.add_index() } else { Ok(()) }
    }

    fn add_index(&mut self) -> std::io::Result<()> {
        let payload = self.index.encode(self.bytes);
        self.write(&encode_block(BlockKind::INDEX, &payload, ZSTD_LEVEL))
    }

    pub(crate) fn finish(mut self, end: &End) -> std::io::Result<()> {
        let index_at = self.bytes;
        self.add_index()?;
        let end_at = self.bytes;
        self.write(&encode_block(BlockKind::END, &end.encode(), ZSTD_LEVEL))?;
        let tail = TraceTail { index_bytes: self.bytes - index_at, end_bytes: self.bytes - end_at };
        self.write(&tail.encode_block())?;
        self.file.flush()
    }
}
