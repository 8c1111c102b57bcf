use super::limits::{max_definition_bytes, max_event_bytes, max_events};
use super::*;
use crate::block::{encode_block, file_header};
use crate::definitions::PyNode;
use crate::event_block;
use crate::meta::{Counters, EndReason};
use proptest::prelude::*;

fn sample() -> Vec<u8> {
    let mut file = file_header().to_vec();
    let mut meta = Meta::default();
    meta.set_number("pid", 1);
    file.extend(encode_block(BlockKind::META, &meta.encode(), 3));
    file.extend(encode_block(BlockKind::EVENTS, &event_block::encode(&[], 0).payload, 3));
    file.extend(encode_block(BlockKind(99), b"of a newer version", 3));
    file.extend(encode_block(BlockKind::NAMES, &definitions::encode_names(&[]), 3));
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
fn valid_file_is_read_to_its_end_with_unknown_blocks() {
    let items = read(&sample());
    assert!(
        matches!(
            &items[..],
            [Item::Meta(_), Item::Events(_), Item::UnknownBlock(BlockKind(99)), Item::Names(_), Item::End(_)]
        ),
        "{items:?}"
    );
}

#[test]
#[cfg_attr(miri, ignore = "calls libzstd")]
fn every_flipped_bit_is_reported_and_costs_one_block_at_most() {
    let sound = sample();
    for at in 0..sound.len() {
        for bit in 0..8 {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << bit;
            let items = read(&bytes);
            let damage = items
                .iter()
                .filter(|item| matches!(item, Item::CorruptRegion(_) | Item::TruncatedBlock { .. }))
                .count();
            assert_eq!(damage, 1, "byte {at} bit {bit}: {items:?}");
            assert!(items.len() >= 4, "byte {at} bit {bit} cost more than one block: {items:?}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "calls libzstd")]
fn file_truncated_inside_a_block_is_reported() {
    let sound = sample();
    for len in 1..sound.len() {
        match TraceReader::new(&sound[..len]) {
            Err(OpenError::Empty) => assert!(len < FILE_HEADER_BYTES),
            Err(error) => panic!("{len}: {error}"),
            Ok(reader) => {
                let items: Vec<Item> = reader.collect();
                let is_reported = matches!(items.last(), Some(Item::TruncatedBlock { .. }));
                let has_end = items.iter().any(|item| matches!(item, Item::End(_)));
                assert!(!has_end, "{len}");
                let whole: usize = FILE_HEADER_BYTES;
                assert!(is_reported || len == whole || !items.is_empty(), "{len}: {items:?}");
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "calls libzstd")]
fn truncated_block_reports_its_kind() {
    let mut file = file_header().to_vec();
    let begin = file.len();
    file.extend(encode_block(BlockKind::META, &Meta::default().encode(), 3));
    for len in begin + 1..file.len() {
        let kind = (len > begin + 4).then_some(BlockKind::META);
        assert_eq!(read(&file[..len]), [Item::TruncatedBlock { offset: begin as u64, kind }], "{len}");
    }
}

/// Numbers of blocks that are read and refused, of a file of equal blocks, and its length.
fn read_and_refused(block: &[u8], times: usize) -> (u64, u64, u64) {
    let mut file = file_header().to_vec();
    (0..times).for_each(|_| file.extend(block));
    let (mut read, mut refused) = (0, 0);
    for item in TraceReader::new(&file[..]).unwrap() {
        match item {
            Item::CorruptRegion(damage) => {
                assert!(damage.why.contains("than a file of this size can need"), "{}", damage.why);
                refused += 1;
            }
            _ => read += 1,
        }
    }
    (read, refused, file.len() as u64)
}

#[test]
fn definitions_and_events_beyond_the_budget_are_refused() {
    // Each block is megabytes of equal rows in a few hundred bytes.
    let payload = definitions::encode_py_nodes(&vec![PyNode::default(); 1_000_000]);
    let (read, refused, bytes) = read_and_refused(&encode_block(BlockKind::PY_NODES, &payload, 3), 10);
    assert_eq!((read + refused, refused > 0), (10, true));
    assert!(read * payload.len() as u64 <= max_definition_bytes(bytes));
    let event = Event { size: u64::MAX, ..Event::new(crate::EventKind::MARK) };
    let payload = event_block::encode(&vec![event; 100_000], 0).payload;
    let (read, refused, bytes) = read_and_refused(&encode_block(BlockKind::EVENTS, &payload, 3), 80);
    assert_eq!((read + refused, refused > 0), (80, true));
    assert!(read * payload.len() as u64 <= max_event_bytes(bytes));
    assert!(read * 100_000 <= max_events(bytes));
}

#[test]
#[cfg_attr(miri, ignore = "calls libzstd")]
fn filtered_blocks_are_skipped() {
    let kinds = |reader: TraceReader<&[u8]>| -> Vec<bool> {
        reader.map(|item| matches!(item, Item::Skipped(_))).collect()
    };
    let bytes = sample();
    assert_eq!(kinds(TraceReader::new(&bytes[..]).unwrap().events_only()), [true, false, true, true, true]);
    assert_eq!(
        kinds(TraceReader::new(&bytes[..]).unwrap().without_events()),
        [false, true, false, false, false]
    );
}

/// A file with one block of events.
fn file_of_events(payload: &[u8]) -> Vec<u8> {
    let mut file = file_header().to_vec();
    file.extend(encode_block(BlockKind::EVENTS, payload, 3));
    file
}

/// Allocations and frees of one address, the first number 0.
fn blocks(rows: u64) -> Vec<Event> {
    let kinds = [crate::EventKind::BLOCK_ALLOC, crate::EventKind::BLOCK_FREE];
    (0..rows).map(|seq| Event { seq, addr: 4096, size: 512, ..Event::new(kinds[seq as usize % 2]) }).collect()
}

#[test]
#[cfg_attr(miri, ignore = "calls libzstd")]
fn chunks_hold_the_events_of_the_block() {
    let events = blocks(3 * CHUNK_EVENTS as u64 + 5);
    let file = file_of_events(&event_block::encode(&events, 0).payload);
    let mut reader = TraceReader::new(&file[..]).unwrap();
    let mut chunks: Vec<Vec<Event>> = Vec::new();
    let item = reader.next_with_event_chunks(&mut |chunk| {
        chunks.push(chunk);
        ControlFlow::Continue(Vec::new())
    });
    assert_eq!(item, Some(Item::Skipped(BlockKind::EVENTS)));
    assert_eq!(
        chunks.iter().map(Vec::len).collect::<Vec<_>>(),
        [CHUNK_EVENTS, CHUNK_EVENTS, CHUNK_EVENTS, 5]
    );
    assert_eq!(chunks.concat(), events);
    assert_eq!(read(&file), [Item::Events(events)]);
}

#[test]
#[cfg_attr(miri, ignore = "calls libzstd")]
fn malformed_block_is_reported_after_its_valid_chunks() {
    let marks = vec![Event::new(crate::EventKind::MARK); CHUNK_EVENTS];
    let mut payload = event_block::encode(&[marks, blocks(2)].concat(), 0).payload;
    // The age column of the only free: id 8, length, count, the age. Two names no allocation.
    let age = payload.windows(4).position(|bytes| bytes == [8, 2, 1, 1]).unwrap() + 3;
    payload[age] = 2;
    let file = file_of_events(&payload);
    let mut rows = 0;
    let item = TraceReader::new(&file[..]).unwrap().next_with_event_chunks(&mut |chunk| {
        rows += chunk.len();
        ControlFlow::Continue(chunk)
    });
    assert_eq!(rows, CHUNK_EVENTS);
    assert!(matches!(item, Some(Item::CorruptRegion(damage)) if damage.is_in_block));
    assert!(matches!(&read(&file)[..], [Item::CorruptRegion(_)]), "a whole block is refused");
}

#[test]
#[cfg_attr(miri, ignore = "calls libzstd")]
fn empty_foreign_and_newer_files_are_refused() {
    assert!(matches!(TraceReader::new(&b""[..]), Err(OpenError::Empty)));
    assert!(matches!(TraceReader::new(&b"hello, world, this is not a trace"[..]), Err(OpenError::NotATrace)));
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
    fn arbitrary_bytes_after_a_header_do_not_panic(bytes: Vec<u8>) {
        let mut file = file_header().to_vec();
        file.extend(&bytes);
        let items = read(&file);
        prop_assert!(items.len() <= bytes.len());
    }
}
