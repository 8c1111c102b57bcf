//! A whole trace file, block by block.
//!
//! Constraint: the file may be gigabytes, still growing, cut off, or damaged in the middle. Consequence: it is read as a
//! stream through a buffer of at most one block; damage becomes an item that says where and how much, and reading goes on
//! at the next sound block. Nothing is skipped silently.

use std::io::{ErrorKind, Read};

use crate::FORMAT_VERSION;
use crate::block::{
    BLOCK_HEADER_BYTES, BLOCK_SYNC, BlockHeader, BlockKind, FILE_HEADER_BYTES, FILE_MAGIC, Unpacker,
    file_version,
};
use crate::event::Event;
use crate::index::{Index, Tail};
pub use crate::item::{Damage, Item, OpenError, max_definition_bytes, max_event_bytes};
use crate::item::{Unpacked, Wanted};
use crate::meta::{End, Meta};
use crate::symbols;
use crate::{defs, links, rows};

/// How much is read at a time, at least.
const READ_BYTES: usize = 1 << 16;

/// Reads a trace from any source of bytes.
#[derive(Debug)]
pub struct TraceReader<R> {
    source: R,
    /// Bytes read and not yet used are those from `used` to `filled`; the first of them is at `offset` in the file.
    buffer: Vec<u8>,
    used: usize,
    filled: usize,
    offset: u64,
    at_end: bool,
    header_damage: Option<Damage>,
    io_error: Option<std::io::Error>,
    wanted: Wanted,
    unpacked: Unpacked,
    unpacker: Unpacker,
    /// Where the next events go.
    events: Vec<Event>,
}

impl<R: Read> TraceReader<R> {
    /// Checks the file header.
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
            // A flipped bit in the header must not cost the whole file: a sound block right after it proves what it was.
            None if header_at(&start[FILE_HEADER_BYTES..]).is_some() => {
                let why = "the file header is damaged".to_owned();
                reader.header_damage =
                    Some(Damage { offset: 0, len: FILE_HEADER_BYTES as u64, why, is_in_block: false });
            }
            None => return Err(OpenError::NotATrace),
        }
        reader.consume(FILE_HEADER_BYTES);
        Ok(reader)
    }

    /// Reads from a block in the middle of a trace, at this offset in the file; `source` begins there.
    pub fn resume(source: R, offset: u64) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            used: 0,
            filled: 0,
            offset,
            at_end: false,
            header_damage: None,
            io_error: None,
            wanted: Wanted::All,
            unpacked: Unpacked::default(),
            unpacker: Unpacker::default(),
            events: Vec::new(),
        }
    }

    /// Passes over blocks of events without unpacking them (each is then [`Item::Skipped`]): for whoever needs the definitions
    /// first.
    #[must_use]
    pub fn without_events(mut self) -> Self {
        self.wanted = Wanted::AllButEvents;
        self
    }

    /// Passes over all blocks but those of events: for whoever has the rest.
    #[must_use]
    pub fn events_only(mut self) -> Self {
        self.wanted = Wanted::EventsOnly;
        self
    }

    /// The next events are put in the place of these: fresh memory for each block takes the system as long as decoding does.
    pub fn reuse(&mut self, events: Vec<Event>) {
        self.events = events;
    }

    /// Bytes of the file used so far.
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

    /// Tries to have at least `wanted` unread bytes.
    fn fill(&mut self, wanted: usize) {
        self.buffer.copy_within(self.used..self.filled, 0);
        self.filled -= self.used;
        self.used = 0;
        if self.buffer.len() < wanted.max(READ_BYTES) {
            self.buffer.resize(wanted.max(READ_BYTES), 0);
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

    /// Moves to the next sound block header (or the end) and tells what was passed over.
    fn resync(&mut self) -> Damage {
        let begin = self.offset;
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
            self.fill(READ_BYTES);
        }
        Damage {
            offset: begin,
            len: self.offset - begin,
            why: "no block begins here".to_owned(),
            is_in_block: false,
        }
    }

    fn next_item(&mut self) -> Option<Item> {
        if let Some(damage) = self.header_damage.take() {
            return Some(Item::Damage(damage));
        }
        if self.unread().len() < BLOCK_HEADER_BYTES {
            self.fill(BLOCK_HEADER_BYTES);
        }
        if let Some(error) = self.io_error.take() {
            let why = format!("the file cannot be read any further: {error}");
            return Some(Item::Damage(Damage { offset: self.offset, len: 0, why, is_in_block: true }));
        }
        let unread = self.unread();
        if unread.is_empty() {
            return None;
        }
        let Some(header) = header_at(unread) else {
            let sync = &BLOCK_SYNC[..unread.len().min(4)];
            if unread.len() < BLOCK_HEADER_BYTES && unread.starts_with(sync) {
                return Some(self.cut());
            }
            return Some(Item::Damage(self.resync()));
        };
        let total = BLOCK_HEADER_BYTES + header.stored_len;
        if unread.len() < total {
            self.fill(total);
            if self.unread().len() < total {
                return Some(self.cut());
            }
        }
        let offset = self.offset;
        if !self.wanted.has(header.kind) {
            self.consume(total);
            return Some(Item::Skipped(header.kind));
        }
        if let Err(why) = self.unpacked.take(&header, offset + total as u64) {
            self.consume(total);
            return Some(Item::Damage(Damage { offset, len: total as u64, why, is_in_block: true }));
        }
        let stored = &self.buffer[self.used + BLOCK_HEADER_BYTES..self.used + total];
        let item = decode_block(&header, stored, &mut self.unpacker, &mut self.events);
        self.consume(total);
        Some(
            item.unwrap_or_else(|why| {
                Item::Damage(Damage { offset, len: total as u64, why, is_in_block: true })
            }),
        )
    }

    fn cut(&mut self) -> Item {
        let offset = self.offset;
        let kind = self.unread().get(BLOCK_SYNC.len()).copied().map(BlockKind);
        self.consume(self.unread().len());
        Item::Cut { offset, kind }
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        self.next_item()
    }
}

fn header_at(bytes: &[u8]) -> Option<BlockHeader> {
    BlockHeader::decode(bytes.first_chunk()?)
}

fn decode_block(
    header: &BlockHeader,
    stored: &[u8],
    unpacker: &mut Unpacker,
    events: &mut Vec<Event>,
) -> Result<Item, String> {
    let payload =
        unpacker.unpack(header, stored).map_err(|error| format!("a block cannot be used: {error}"))?;
    let decoded = match header.kind {
        BlockKind::META => return Meta::decode(payload).map(Item::Meta).map_err(|error| error.to_string()),
        BlockKind::END => return End::decode(payload).map(Item::End).map_err(|error| error.to_string()),
        BlockKind::EVENTS => {
            rows::decode_into(payload, events).map(|()| Item::Events(std::mem::take(events)))
        }
        BlockKind::CODES => defs::decode_codes(payload).map(Item::Codes),
        BlockKind::PY_NODES => defs::decode_py_nodes(payload).map(Item::PyNodes),
        BlockKind::LINKS => links::decode_links(payload).map(Item::Links),
        BlockKind::NATIVE_NODES => defs::decode_native_nodes(payload).map(Item::NativeNodes),
        BlockKind::MODULES => defs::decode_modules(payload).map(Item::Modules),
        BlockKind::NAMES => symbols::decode_names(payload).map(Item::Names),
        BlockKind::INDEX => Index::decode(payload).map(Item::Index),
        BlockKind::TAIL => Tail::decode(payload).map(Item::Tail),
        kind => Ok(Item::UnknownBlock(kind)),
    };
    decoded.map_err(|error| format!("a block cannot be used: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{encode_block, file_header};
    use crate::defs::PyNode;
    use crate::meta::{Counters, EndReason};
    use proptest::prelude::*;

    fn sample() -> Vec<u8> {
        let mut file = file_header().to_vec();
        let mut meta = Meta::default();
        meta.set_number("pid", 1);
        file.extend(encode_block(BlockKind::META, &meta.encode(), 3));
        file.extend(encode_block(BlockKind::EVENTS, &rows::encode(&[], 0).payload, 3));
        file.extend(encode_block(BlockKind(99), b"from the future", 3));
        file.extend(encode_block(BlockKind::NAMES, &symbols::encode_names(&[]), 3));
        let end = End {
            reason: EndReason::Exit,
            events: 0,
            time_ns: 9,
            message: String::new(),
            counters: Counters::default(),
        };
        file.extend(encode_block(BlockKind::END, &end.encode(), 3));
        file
    }

    fn read(bytes: &[u8]) -> Vec<Item> {
        TraceReader::new(bytes).unwrap().collect()
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls libzstd")]
    fn a_sound_file_is_read_to_its_end_and_unknown_blocks_are_told() {
        let items = read(&sample());
        assert!(
            matches!(
                &items[..],
                [
                    Item::Meta(_),
                    Item::Events(_),
                    Item::UnknownBlock(BlockKind(99)),
                    Item::Names(_),
                    Item::End(_)
                ]
            ),
            "{items:?}"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls libzstd")]
    fn every_single_flipped_bit_is_told_and_costs_one_block_at_most() {
        let sound = sample();
        for at in 0..sound.len() {
            for bit in 0..8 {
                let mut bytes = sound.clone();
                bytes[at] ^= 1 << bit;
                let items = read(&bytes);
                let damage =
                    items.iter().filter(|item| matches!(item, Item::Damage(_) | Item::Cut { .. })).count();
                assert_eq!(damage, 1, "byte {at} bit {bit}: {items:?}");
                assert!(items.len() >= 4, "byte {at} bit {bit} cost more than one block: {items:?}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls libzstd")]
    fn a_file_cut_anywhere_says_so_unless_it_ends_between_blocks() {
        let sound = sample();
        for len in 1..sound.len() {
            match TraceReader::new(&sound[..len]) {
                Err(OpenError::Empty) => assert!(len < FILE_HEADER_BYTES),
                Err(error) => panic!("{len}: {error}"),
                Ok(reader) => {
                    let items: Vec<Item> = reader.collect();
                    let told = matches!(items.last(), Some(Item::Cut { .. }));
                    let has_end = items.iter().any(|item| matches!(item, Item::End(_)));
                    assert!(!has_end, "{len}");
                    let whole: usize = FILE_HEADER_BYTES;
                    assert!(told || len == whole || !items.is_empty(), "{len}: {items:?}");
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls libzstd")]
    fn a_cut_block_says_what_it_was_going_to_hold() {
        let mut file = file_header().to_vec();
        let begin = file.len();
        file.extend(encode_block(BlockKind::META, &Meta::default().encode(), 3));
        for len in begin + 1..file.len() {
            let kind = (len > begin + 4).then_some(BlockKind::META);
            assert_eq!(read(&file[..len]), [Item::Cut { offset: begin as u64, kind }], "{len}");
        }
    }

    /// How many of many equal blocks are taken and refused.
    fn taken_and_refused(block: &[u8], times: usize) -> (u64, u64, u64) {
        let mut file = file_header().to_vec();
        (0..times).for_each(|_| file.extend(block));
        let (mut taken, mut refused) = (0, 0);
        for item in TraceReader::new(&file[..]).unwrap() {
            match item {
                Item::Damage(damage) => {
                    assert!(damage.why.contains("than a file of this size can need"), "{}", damage.why);
                    refused += 1;
                }
                _ => taken += 1,
            }
        }
        (taken, refused, file.len() as u64)
    }

    #[test]
    fn definitions_and_events_may_not_unpack_to_more_than_the_file_can_need() {
        // Each block is megabytes of equal rows in a few hundred bytes.
        let payload = defs::encode_py_nodes(&vec![PyNode::default(); 1_000_000]);
        let (taken, refused, bytes) = taken_and_refused(&encode_block(BlockKind::PY_NODES, &payload, 3), 10);
        assert_eq!((taken + refused, refused > 0), (10, true));
        assert!(taken * payload.len() as u64 <= max_definition_bytes(bytes));
        let event = Event { size: u64::MAX, ..Event::new(crate::EventKind::MARK) };
        let payload = rows::encode(&vec![event; 100_000], 0).payload;
        let (taken, refused, bytes) = taken_and_refused(&encode_block(BlockKind::EVENTS, &payload, 3), 80);
        assert_eq!((taken + refused, refused > 0), (80, true));
        assert!(taken * payload.len() as u64 <= max_event_bytes(bytes));
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls libzstd")]
    fn blocks_that_are_not_asked_for_are_passed_over() {
        let kinds = |reader: TraceReader<&[u8]>| -> Vec<bool> {
            reader.map(|item| matches!(item, Item::Skipped(_))).collect()
        };
        let bytes = sample();
        assert_eq!(
            kinds(TraceReader::new(&bytes[..]).unwrap().events_only()),
            [true, false, true, true, true]
        );
        assert_eq!(
            kinds(TraceReader::new(&bytes[..]).unwrap().without_events()),
            [false, true, false, false, false]
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls libzstd")]
    fn empty_and_foreign_files_are_refused() {
        assert!(matches!(TraceReader::new(&b""[..]), Err(OpenError::Empty)));
        assert!(matches!(
            TraceReader::new(&b"hello, world, this is not a trace"[..]),
            Err(OpenError::NotATrace)
        ));
        assert!(matches!(TraceReader::new(&b"\x7fELF"[..]), Err(OpenError::NotATrace)));
        let mut newer = sample();
        let next = FORMAT_VERSION + 1;
        newer[8] = next as u8;
        let crc = crc32c::crc32c(&newer[..12]);
        newer[12..16].copy_from_slice(&crc.to_le_bytes());
        let refused = TraceReader::new(&newer[..]).map(drop);
        assert!(matches!(refused, Err(OpenError::Version(version)) if version == next));
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "calls libzstd")]
        fn any_bytes_after_a_header_are_read_without_panic(bytes: Vec<u8>) {
            let mut file = file_header().to_vec();
            file.extend(&bytes);
            let items = read(&file);
            prop_assert!(items.len() <= bytes.len());
        }
    }
}
