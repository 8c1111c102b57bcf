//! The blocks of a trace in memory.

use gpumemtrace_format::Event;
use gpumemtrace_format::block::{BlockKind, BlockPacker, encode_block, encode_raw_block, file_header};
use gpumemtrace_format::event_block::EventEncoder;

/// Rows of a block of events.
const ROWS_PER_BLOCK: usize = 1 << 16;
/// Events that are encoded at once.
const BATCH_EVENTS: usize = 1024;
const ZSTD_LEVEL: i32 = 1;
/// PyTorch's microseconds are multiples of 8 ns.
const TIME_SHIFT: u8 = 3;

/// Writes a trace to memory.
pub(super) struct TraceWriter {
    bytes: Vec<u8>,
    events: Vec<Event>,
    encoder: EventEncoder,
    packer: BlockPacker,
}

impl Default for TraceWriter {
    fn default() -> Self {
        Self {
            bytes: file_header().to_vec(),
            events: Vec::with_capacity(BATCH_EVENTS),
            encoder: EventEncoder::new(TIME_SHIFT),
            packer: BlockPacker::new(ZSTD_LEVEL),
        }
    }
}

impl TraceWriter {
    pub(super) fn add_event(&mut self, event: Event) {
        self.events.push(event);
        if self.events.len() == BATCH_EVENTS {
            self.encode_batch();
            if self.encoder.rows() >= ROWS_PER_BLOCK {
                self.finish_events();
            }
        }
    }

    fn encode_batch(&mut self) {
        self.encoder.push(&self.events);
        self.events.clear();
    }

    /// Writes the events that are not in a block yet.
    pub(super) fn finish_events(&mut self) {
        self.encode_batch();
        if self.encoder.rows() > 0 {
            let rows = self.encoder.finish();
            let block = self.packer.encode_block(BlockKind::EVENTS, &rows.payload, &rows.split_offsets);
            self.bytes.extend_from_slice(&block);
        }
    }

    /// Adds a block that is not of events.
    pub(super) fn add_block(&mut self, kind: BlockKind, payload: &[u8]) {
        self.bytes.extend_from_slice(&encode_block(kind, payload, ZSTD_LEVEL));
    }

    /// Adds a block of definitions, unpacked: readers limit how far those may unpack.
    pub(super) fn add_definitions(&mut self, kind: BlockKind, payload: &[u8]) {
        self.bytes.extend_from_slice(&encode_raw_block(kind, payload));
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
