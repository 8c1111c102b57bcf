//! Ring files and their records.

use gpumemtrace_format::ThreadId;
use gpumemtrace_format::event::{RECORD_BYTES, RECORD_WORDS};
use gpumemtrace_format::ring::{
    COUNTERS_AGAIN_AT, COUNTERS_AT, END_AT, END_TIME_AT, HEADER_BYTES, NEXT_SEQ_AT, PAGE_BYTES, RING_HEAD_AT,
    RING_RECORDS_AT, RING_TAIL_AGAIN_AT, RING_TAIL_AT, RING_THREAD_AT, RecordDecoder, RingImage, RingLayout,
    TRACE_BYTES_AT, encode_header, ring_bytes, seal, seal_completing,
};

use crate::FuzzInput;

/// The input is a ring file, and the contents of one with a correct header.
pub fn file(bytes: &[u8]) {
    let _ = RingImage::decode(bytes);
    let ring = valid_ring(bytes);
    let image = RingImage::decode(&ring).expect("a valid header");
    assert!(image.records.len() <= ring.len() / RECORD_BYTES);
}

/// The input is the records of one ring.
pub fn records(bytes: &[u8]) {
    let mut decoder = RecordDecoder::new(ThreadId(1));
    let mut decoded = 0;
    for words in words_of(bytes) {
        decoded += u64::from(decoder.push(&words).is_some());
    }
    assert!(decoded + decoder.malformed() <= 2 * (bytes.len() / RECORD_BYTES + 1) as u64);
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = [u64; RECORD_WORDS]> {
    bytes.chunks(RECORD_BYTES).map(|record| {
        let mut record = FuzzInput(record);
        std::array::from_fn(|_| record.number(8))
    })
}

/// Makes a ring file from `records:u6 seals:u2 end:u64 time:u64 next_seq:u64 counter:u8`, then
/// rings `thread:u8 tail:u8 count:u8 records`, each twice as large as the one before.
pub fn valid_ring(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = FuzzInput(bytes);
    let first = bytes.number(1) as usize;
    let (mut per_ring, seals) = (first % 64, first / 64);
    let mut page = vec![0; PAGE_BYTES];
    for at in [END_AT, END_TIME_AT, NEXT_SEQ_AT] {
        let number = bytes.number(8).to_le_bytes();
        page[at..][..8].copy_from_slice(&number);
        page[TRACE_BYTES_AT..][..8].copy_from_slice(&number);
    }
    page[COUNTERS_AT] = bytes.number(1) as u8;
    page[COUNTERS_AGAIN_AT] = page[COUNTERS_AT] & !(seals as u8);
    let mut rings = Vec::new();
    let mut classes = [(0, 0); 8];
    for class in &mut classes {
        if bytes.0.is_empty() {
            break;
        }
        let (thread, tail, count) = (bytes.number(1) as u8, bytes.number(1), bytes.number(1));
        *class = (1, per_ring as u32);
        let mut ring = vec![0; ring_bytes(per_ring as u32) as usize];
        ring[RING_THREAD_AT] = thread;
        ring[RING_TAIL_AT..][..8].copy_from_slice(&tail.to_le_bytes());
        ring[RING_TAIL_AGAIN_AT..][..8].copy_from_slice(&tail.to_le_bytes());
        ring[RING_HEAD_AT..][..8].copy_from_slice(&(tail + count).to_le_bytes());
        for number in tail..tail + count.min(per_ring as u64) {
            let at = RING_RECORDS_AT + (number as usize % per_ring) * RECORD_BYTES;
            let Some(mut words) = words_of(bytes.take(RECORD_BYTES)).next() else { break };
            words[RECORD_WORDS - 1] = match seals {
                0 => words[RECORD_WORDS - 1],
                1 => seal_completing(&words, number, u32::from(thread)),
                _ => seal(&words, number, u32::from(thread)),
            };
            for (bytes, word) in ring[at..].chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        rings.push(ring);
        per_ring *= 2;
    }
    // The header around the values that are set above.
    let header = encode_header([0xab; 16], 1, &RingLayout::new(classes));
    page[..END_AT].copy_from_slice(&header[..END_AT]);
    page[256..HEADER_BYTES].copy_from_slice(&header[256..]);
    rings.into_iter().fold(page, |mut file, ring| {
        file.extend(ring);
        file
    })
}
