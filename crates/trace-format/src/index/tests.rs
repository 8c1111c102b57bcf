use super::*;
use crate::block::{BLOCK_HEADER_BYTES, BlockHeader, FILE_HEADER_BYTES, encode_block, file_header};
use crate::event::{Event, EventKind};
use crate::event_block;
use crate::ids::ThreadId;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashSet;

fn event(seq: u64, thread: u32, kind: u8) -> Event {
    Event { seq, thread: ThreadId(thread), ..Event::new(EventKind(kind)) }
}

/// A finished file and the offsets of its INDEX blocks: one after every other round of the writer.
fn file(rounds: &[Vec<Event>]) -> (Vec<u8>, Vec<u64>) {
    let (mut file, mut builder, mut indexes) = (file_header().to_vec(), IndexBuilder::default(), Vec::new());
    let mut index = |file: &mut Vec<u8>, builder: &mut IndexBuilder| {
        indexes.push(file.len() as u64);
        let payload = builder.encode(file.len() as u64);
        file.extend(encode_block(BlockKind::INDEX, &payload, 3));
    };
    for (number, events) in rounds.iter().enumerate() {
        let meta = encode_block(BlockKind::META, b"not decoded", 3);
        builder.add_block(BlockKind::META, file.len() as u64, meta.len(), 0);
        file.extend(meta);
        let block = encode_block(BlockKind::EVENTS, &event_block::encode(events, 0).payload, 3);
        builder.add_event_block(block.len(), events);
        file.extend(block);
        if number % 2 == 1 {
            index(&mut file, &mut builder);
        }
    }
    index(&mut file, &mut builder);
    let end = file.len() as u64;
    file.extend(encode_block(BlockKind::END, b"not decoded", 3));
    let at = file.len() as u64;
    let tail = TraceTail { index_bytes: at - indexes.last().unwrap(), end_bytes: at - end };
    file.extend(tail.encode_block());
    (file, indexes)
}

fn index_at(file: &[u8], at: u64) -> Index {
    let (header, rest) = file[at as usize..].split_first_chunk().unwrap();
    let header = BlockHeader::decode(header).unwrap();
    assert_eq!(header.kind, BlockKind::INDEX);
    Index::decode(&header.unpack(&rest[..header.stored_len]).unwrap()).unwrap()
}

fn location(file: &[u8]) -> Option<IndexLocation> {
    locate_index(file.len() as u64, |at, buffer| {
        let there = file.get(at as usize..at as usize + buffer.len());
        there.map(|bytes| buffer.copy_from_slice(bytes)).is_some()
    })
}

proptest! {
    #[test]
    fn index_matches_the_file_and_leads_to_every_block(
        rounds in vec(vec((0u64..50, 0u32..4, 0u8..5), 0..30), 0..6), before in 0usize..100,
    ) {
        let rounds: Vec<Vec<Event>> =
            rounds.iter().map(|rows| rows.iter().map(|(seq, thread, kind)| event(*seq, *thread, *kind)).collect()).collect();
        let (file, indexes) = file(&rounds);
        let all: Vec<Event> = rounds.concat();
        let found = location(&file).unwrap();
        prop_assert_eq!(found.index, indexes.last().copied());
        let index = index_at(&file, found.index.unwrap());
        prop_assert_eq!(index.totals.placed, all.len() as u64);
        let threads: HashSet<ThreadId> = all.iter().map(|event| event.thread).collect();
        prop_assert_eq!(index.totals.threads, threads.len() as u64);
        for (kind, count) in &index.totals.kinds {
            prop_assert_eq!(*count, all.iter().filter(|event| event.kind.0 == *kind).count() as u64);
        }
        if let Some(lowest) = all.iter().map(|event| event.seq).min() {
            let highest = all.iter().map(|event| event.seq).max().unwrap();
            prop_assert_eq!(index.totals.seqs.clone(), lowest..highest + 1);
        }
        // Distances lead to the same blocks whatever precedes the trace.
        let shift = before as u64;
        let shifted = [vec![0; before], file.clone()].concat();
        let at = found.index.unwrap() + shift;
        for meta in &index.metas_bytes {
            let header = BlockHeader::decode(shifted[(at - meta) as usize..].first_chunk().unwrap()).unwrap();
            prop_assert_eq!(header.kind, BlockKind::META);
        }
        // From INDEX to INDEX, every block is listed.
        let (mut at, mut listed_bytes) = (found.index.unwrap(), 0);
        loop {
            let index = index_at(&file, at);
            let listed: u64 = index.blocks.iter().map(|block| block.len_bytes).sum();
            listed_bytes += listed;
            if index.previous_bytes == 0 {
                prop_assert_eq!(at - listed, FILE_HEADER_BYTES as u64);
                break;
            }
            let header_of_previous = &file[(at - index.previous_bytes) as usize..];
            let previous = BlockHeader::decode(header_of_previous.first_chunk().unwrap()).unwrap();
            prop_assert_eq!(listed + (BLOCK_HEADER_BYTES + previous.stored_len) as u64, index.previous_bytes);
            at -= index.previous_bytes;
        }
        prop_assert!(listed_bytes < file.len() as u64);
    }

    #[test]
    fn truncated_file_still_leads_to_its_last_whole_index(rounds in 0usize..5, cut: prop::sample::Index) {
        let rounds: Vec<Vec<Event>> = (0..rounds as u64).map(|round| vec![event(round, 1, 1)]).collect();
        let (whole, indexes) = file(&rounds);
        let len = cut.index(whole.len());
        let found = location(&whole[..len]);
        let complete = |at: &u64| {
            let header = BlockHeader::decode(whole[*at as usize..].first_chunk().unwrap()).unwrap();
            *at as usize + BLOCK_HEADER_BYTES + header.stored_len <= len
        };
        let expected = indexes.iter().copied().rfind(complete);
        prop_assert_eq!(found.unwrap().index, expected);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
        let _ = Index::decode(&bytes);
        let _ = TraceTail::decode(&bytes);
        let _ = location(&bytes);
    }
}

#[test]
fn damaged_file_has_no_index_location() {
    let (mut bytes, _) = file(&[vec![event(0, 1, 1)]]);
    let len = bytes.len() - TAIL_BYTES;
    bytes.truncate(len);
    bytes[FILE_HEADER_BYTES + 9] ^= 1;
    assert_eq!(location(&bytes), None);
}

#[test]
fn tail_block_has_a_fixed_length() {
    for tail in
        [TraceTail { index_bytes: 0, end_bytes: 0 }, TraceTail { index_bytes: u64::MAX, end_bytes: 1 }]
    {
        let block = tail.encode_block();
        assert_eq!(TraceTail::from_last_bytes(block.as_slice().try_into().unwrap()), Some(tail));
    }
}
