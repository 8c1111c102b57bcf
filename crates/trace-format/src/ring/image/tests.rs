use super::*;
use crate::definitions::{CodeDef, FrameLink, NativeNode, PyNode};
use crate::event::{Detail, Event, EventKind};
use crate::ids::{CodeId, NodeId};
use crate::ring::check::seal;
use crate::ring::layout::{CLASSES_AT, MAX_RING_CLASSES};
use crate::ring::{
    HEADER_BYTES, encode_code_records, encode_header, encode_native_node_record, encode_py_node_record,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// A ring file with one ring per list of records, as a recorder would leave it.
fn image_bytes(per_ring: usize, rings: &[(u64, Vec<[u64; RECORD_WORDS]>)]) -> Vec<u8> {
    let layout = RingLayout::uniform(rings.len() as u32, per_ring as u32);
    let mut bytes = vec![0; layout.file_bytes() as usize];
    bytes[..HEADER_BYTES].copy_from_slice(&encode_header([7; 16], 42, &layout));
    bytes[NEXT_SEQ_AT..][..8].copy_from_slice(&100u64.to_le_bytes());
    for (index, (tail, records)) in rings.iter().enumerate() {
        let ring = &mut bytes[layout.ring(index).unwrap().0 as usize..];
        ring[..4].copy_from_slice(&(100 + index as u32).to_le_bytes());
        ring[RING_HEAD_AT..][..8].copy_from_slice(&(tail + records.len() as u64).to_le_bytes());
        ring[RING_TAIL_AT..][..8].copy_from_slice(&tail.to_le_bytes());
        ring[RING_TAIL_AGAIN_AT..][..8].copy_from_slice(&tail.to_le_bytes());
        for (number, words) in (*tail..).zip(records) {
            let at = RING_RECORDS_AT + (number % per_ring as u64) as usize * RECORD_BYTES;
            let mut words = *words;
            words[7] = seal(&words, number, 100 + index as u32);
            for (word, place) in words.iter().zip(ring[at..].chunks_exact_mut(8)) {
                place.copy_from_slice(&word.to_le_bytes());
            }
        }
    }
    bytes
}

#[test]
fn wrapped_rings_of_a_killed_process_are_read() {
    let code = CodeDef {
        id: CodeId(9),
        first_line: -3,
        python: 0x030b,
        truncated: true,
        file: "train.py".into(),
        name: "Net.forward".into(),
        line_table: (0..200).collect(),
    };
    let node =
        PyNode { id: NodeId(2), parent: NodeId(1), code: CodeId(9), offset_bytes: -1, link: FrameLink::C };
    let native = NativeNode { id: NodeId(5), parent: NodeId::NONE, return_address: 0x7fff_1234_5678 };
    let mut records = encode_code_records(&code);
    records.push(encode_py_node_record(node));
    records.push(encode_native_node_record(native, 0));
    // Tail 6 in a ring of 8: the records wrap.
    let image = RingImage::decode(&image_bytes(8, &[(6, records)])).unwrap();
    assert_eq!(
        image.records,
        [RingRecord::Code(code), RingRecord::PyNode(node), RingRecord::NativeNode(native)]
    );
    assert_eq!((image.trace_id, image.pid, image.malformed), ([7; 16], 42, 0));
}

#[test]
fn torn_definition_is_counted_and_the_next_record_is_kept() {
    let code = CodeDef { file: "x".repeat(100), ..CodeDef::default() };
    let mut records = encode_code_records(&code);
    records.truncate(2);
    let node = PyNode {
        id: NodeId(2),
        parent: NodeId(1),
        code: CodeId(0),
        offset_bytes: 4,
        link: FrameLink::Python,
    };
    records.push(encode_py_node_record(node));
    let image = RingImage::decode(&image_bytes(8, &[(0, records)])).unwrap();
    assert_eq!((image.records, image.malformed), (vec![RingRecord::PyNode(node)], 1));
}

fn block_event(seq: u64) -> Event {
    Event {
        seq,
        time_ns: 5,
        thread: ThreadId(100),
        kind: EventKind::BLOCK_ALLOC,
        device: 0,
        api: crate::ApiId(0),
        flags: 0,
        result: 0,
        in_flight: false,
        addr: 0x1000,
        size: 512,
        aux: [512, 1024],
        python_stack: NodeId(1),
        native_stack: NodeId::NONE,
        detail: None,
    }
}

#[test]
fn detail_belongs_to_the_next_event_only() {
    let detail = Detail { requested_bytes: 500, stream: 7, pool: 1 << 32 };
    let node = PyNode {
        id: NodeId(2),
        parent: NodeId(1),
        code: CodeId(0),
        offset_bytes: 4,
        link: FrameLink::Python,
    };
    let records = vec![
        detail.to_words(),
        block_event(0).to_words(),
        block_event(1).to_words(),
        detail.to_words(),
        encode_py_node_record(node),
        block_event(2).to_words(),
    ];
    let image = RingImage::decode(&image_bytes(8, &[(0, records)])).unwrap();
    let with_detail = Event { detail: Some(detail), ..block_event(0) };
    let expected = [
        RingRecord::Event(with_detail),
        RingRecord::Event(block_event(1)),
        RingRecord::PyNode(node),
        RingRecord::Event(block_event(2)),
    ];
    assert_eq!((image.records.as_slice(), image.malformed), (&expected[..], 1));
}

#[test]
fn ring_file_of_another_version_is_refused() {
    let mut bytes = image_bytes(8, &[(0, vec![block_event(0).to_words()])]);
    bytes[8] = RING_VERSION as u8 + 1;
    assert_eq!(RingImage::decode(&bytes), Err(RingError::Version(RING_VERSION + 1)));
}

#[test]
fn rings_of_several_classes_are_read() {
    let mut classes = [(0, 0); MAX_RING_CLASSES];
    (classes[0], classes[1]) = ((1, 64), (2, 4));
    let layout = RingLayout::new(classes);
    let mut bytes = vec![0; layout.file_bytes() as usize];
    bytes[..HEADER_BYTES].copy_from_slice(&encode_header([7; 16], 42, &layout));
    bytes[NEXT_SEQ_AT..][..8].copy_from_slice(&100u64.to_le_bytes());
    for index in 0..3u32 {
        let one = image_bytes(
            if index == 0 { 64 } else { 4 },
            &[(2, vec![block_event(u64::from(index)).to_words()])],
        );
        let at = layout.ring(index as usize).unwrap().0 as usize;
        let ring = &one[PAGE_BYTES..];
        bytes[at..at + ring.len()].copy_from_slice(ring);
    }
    let image = RingImage::decode(&bytes).unwrap();
    let expected: Vec<RingRecord> = (0..3).map(|seq| RingRecord::Event(block_event(seq))).collect();
    assert_eq!((image.records, image.malformed), (expected, 0));
}

#[test]
fn leftover_records_and_records_of_another_thread_are_malformed() {
    let sound = image_bytes(2, &[(4, vec![block_event(0).to_words(); 2])]);
    let at = |at: usize| PAGE_BYTES + at;
    for (place, value) in [(at(RING_HEAD_AT), 7u8), (at(RING_THREAD_AT), 99), (at(RING_THREAD_AT), 0)] {
        let mut bytes = sound.clone();
        bytes[place] = value;
        assert!(RingImage::decode(&bytes).unwrap().malformed > 0, "{place} {value}");
    }
    let rest = RingImage::decode(&sound).unwrap();
    for (place, value) in [(at(RING_HEAD_AT), 5u8), (at(RING_TAIL_AT), 5), (at(RING_TAIL_AGAIN_AT), 6)] {
        let mut bytes = sound.clone();
        bytes[place] = value;
        assert_eq!(RingImage::decode(&bytes), Ok(rest.clone()), "{place} {value}: the second copy counts");
    }
}

#[test]
fn file_shorter_than_its_header_says_is_malformed() {
    let sound = image_bytes(2, &[(0, vec![]), (0, vec![])]);
    assert_eq!(RingImage::decode(&sound).unwrap().malformed, 0);
    assert_eq!(RingImage::decode(&sound[..sound.len() - PAGE_BYTES]).unwrap().malformed, 1);
}

#[test]
fn foreign_file_and_damaged_header_are_refused() {
    assert_eq!(RingImage::decode(b"hello"), Err(RingError::NotARing));
    let mut bytes = image_bytes(8, &[]);
    bytes[CLASSES_AT] ^= 1;
    assert_eq!(RingImage::decode(&bytes), Err(RingError::NotARing));
}

#[test]
fn file_that_claims_to_be_huge_is_refused() {
    let mut page = vec![0; PAGE_BYTES];
    page[..HEADER_BYTES].copy_from_slice(&encode_header(
        [0; 16],
        1,
        &RingLayout::uniform(u32::MAX, u32::MAX),
    ));
    assert!(matches!(RingImage::decode(&page), Err(RingError::TooLarge(_))));
}

/// A ring file, and how many of its bytes were read.
struct Counted(Vec<u8>, usize);

impl RingSource for Counted {
    fn read_at(&mut self, at: u64, into: &mut [u8]) -> std::io::Result<usize> {
        let read = (&self.0[..]).read_at(at, into)?;
        self.1 += read;
        Ok(read)
    }

    fn length_bytes(&mut self) -> std::io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}

/// The sequence numbers of events that one more reading returns.
fn new_events(bytes: Vec<u8>, progress: &mut RingProgress) -> (Vec<u64>, usize) {
    let mut source = Counted(bytes, 0);
    let image = RingImage::read_new(&mut source, progress, |_| false).unwrap();
    assert_eq!(image.malformed, 0);
    let seqs = image.records.iter().filter_map(|record| match record {
        RingRecord::Event(event) => Some(event.seq),
        _ => None,
    });
    (seqs.collect(), source.1)
}

#[test]
fn later_readings_return_only_what_is_new_or_was_in_flight() {
    let calls = |count: u64, in_flight: Option<u64>| -> Vec<[u64; RECORD_WORDS]> {
        let event = |seq| Event {
            kind: EventKind::DEVICE_FREE,
            in_flight: in_flight == Some(seq),
            ..block_event(seq)
        };
        (0..count).map(|seq| event(seq).to_words()).collect()
    };
    let mut progress = RingProgress::default();
    let file = |count, in_flight| image_bytes(4096, &[(0, calls(count, in_flight)), (0, vec![])]);
    assert_eq!(new_events(file(5, Some(3)), &mut progress).0, [0, 1, 2, 3, 4]);
    assert_eq!(new_events(file(6, Some(3)), &mut progress).0, [3, 4, 5]);
    assert_eq!(new_events(file(7, None), &mut progress).0, [3, 4, 5, 6]);
    assert_eq!(new_events(file(7, None), &mut progress).0, [0; 0]);
    // Of a file of half a megabyte, the headers and two chunks are read.
    let (seqs, read_bytes) = new_events(file(8, None), &mut progress);
    assert!(seqs == [7] && read_bytes < 50_000, "{read_bytes}");
    // The records were written to the trace.
    let records = calls(9, None)[8..].to_vec();
    assert_eq!(new_events(image_bytes(4096, &[(8, records), (0, vec![])]), &mut progress).0, [8]);
    // The ring of another run.
    let mut other = file(2, None);
    let header = encode_header([8; 16], 43, &RingLayout::uniform(2, 4096));
    other[..HEADER_BYTES].copy_from_slice(&header);
    assert_eq!(new_events(other, &mut progress).0, [0, 1]);
}

#[test]
fn definition_that_was_half_stored_is_read_from_its_head() {
    let code = CodeDef { id: CodeId(9), file: "x".repeat(100), ..CodeDef::default() };
    let records = encode_code_records(&code);
    let mut progress = RingProgress::default();
    let mut read = |count: usize| {
        let bytes = image_bytes(8, &[(0, records[..count].to_vec())]);
        RingImage::read_new(&mut &bytes[..], &mut progress, |_| false).unwrap().records
    };
    assert_eq!(read(2), []);
    assert_eq!(read(records.len()), [RingRecord::Code(code)]);
}

proptest! {
    #[test]
    fn arbitrary_ring_contents_do_not_panic(
        garbage in vec(any::<u8>(), 0..9000), classes in prop::array::uniform8((0u32..3, 0u32..32)),
    ) {
        let mut bytes = vec![0; PAGE_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(&encode_header([0; 16], 1, &RingLayout::new(classes)));
        bytes.extend_from_slice(&garbage);
        let image = RingImage::decode(&bytes).unwrap();
        prop_assert!(image.records.len() <= bytes.len() / RECORD_BYTES + 1);
    }
}
