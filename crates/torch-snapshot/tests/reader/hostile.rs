//! Files that try to run code, to use up memory, or that are damaged.

use std::io::Cursor;

use gpumemtrace_torch_snapshot::{SnapshotError, transcode};

use super::allocator_model::AllocatorModel;
use super::labels::with_new_fields;
use super::packed::{page, stored_zip, xz};
use super::pickle_writer::{PickleStyle, pickle};
use super::{gzip, json_bytes};

/// Mutations to try; the variable GPUMEMTRACE_MUTATIONS sets another number.
const MUTATIONS: u64 = 5_000;

#[test]
fn every_opcode_of_code_is_refused_by_its_name() {
    for (opcode, name) in [
        (b'c', "GLOBAL"),
        (0x93, "STACK_GLOBAL"),
        (b'R', "REDUCE"),
        (b'b', "BUILD"),
        (b'i', "INST"),
        (b'o', "OBJ"),
        (0x81, "NEWOBJ"),
        (0x92, "NEWOBJ_EX"),
        (0x82, "EXT1"),
        (0x83, "EXT2"),
        (0x84, "EXT4"),
        (b'P', "PERSID"),
        (b'Q', "BINPERSID"),
        (0x97, "NEXT_BUFFER"),
        (0x98, "READONLY_BUFFER"),
    ] {
        // The opcode after a dictionary that would otherwise do.
        let bytes = [0x80, 2, b'}', opcode, b'o', b's', b'\n', b's', b'\n', b'.'];
        match transcode(&mut Cursor::new(&bytes[..])) {
            Err(SnapshotError::Code { opcode, offset }) => assert_eq!((opcode, offset), (name, 3)),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn pickle_that_would_run_a_command_is_refused_and_says_so() {
    let bytes = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.";
    let error = transcode(&mut Cursor::new(&bytes[..])).unwrap_err().to_string();
    assert_eq!(
        error,
        "is a pickle that runs code (opcode STACK_GLOBAL at byte 17); a snapshot needs none, so it was not read"
    );
}

#[test]
fn lengths_and_numbers_in_the_file_are_not_trusted() {
    let bodies: [&[u8]; 8] = [
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",   // bytes of 2^63
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffab", // a text of 2^64 - 1
        b"\x8b\xff\xff\xff\x7f",                   // an integer of 2 GiB
        b"X\xff\xff\xff\xffabc",                   // a text of 4 GiB
        b"}r\xff\xff\xff\xff.",                    // memo entry 2^32 - 1
        b"j\x00\x00\x00\x10.",                     // an entry that does not exist
        b"e.",                                     // APPENDS without a mark
        b"]]a0u.",                                 // SETITEMS without a mark
    ];
    for body in bodies {
        let bytes = [&[0x80, 4], body].concat();
        assert!(transcode(&mut Cursor::new(&bytes[..])).is_err(), "{body:?}");
    }
}

#[test]
fn deep_nesting_is_refused_without_recursion() {
    let mut marks = vec![0x80, 4];
    marks.extend(std::iter::repeat_n(b'(', 1 << 20));
    assert!(transcode(&mut Cursor::new(&marks[..])).is_err());
    // A list in a list in a list.
    let mut lists = vec![0x80, 4];
    lists.extend(std::iter::repeat_n(b']', 300_000));
    lists.extend(std::iter::repeat_n(b'a', 299_999));
    lists.push(b'.');
    assert!(transcode(&mut Cursor::new(&lists[..])).is_err());
    let json = "[".repeat(1 << 20);
    assert!(transcode(&mut Cursor::new(json.as_bytes())).is_err());
}

#[test]
fn dictionary_that_contains_itself_ends() {
    // d = {}; d["segments"] = d; d["device_traces"] = [d]
    let bytes = b"\x80\x04}\x94(\x8c\x08segmentsh\x00\x8c\x0ddevice_traces]h\x00au.";
    let _ = transcode(&mut Cursor::new(&bytes[..]));
    // A list that contains itself, as the blocks of a segment.
    let bytes = b"\x80\x04}(\x8c\x08segments]\x94(h\x00h\x00eu.";
    let _ = transcode(&mut Cursor::new(&bytes[..]));
}

#[test]
fn list_of_a_finished_part_is_not_taken_for_another_one() {
    // An event, made by DICT or by SETITEMS, has a list in entry 5 of the memo. The list is freed,
    // and its number is that of the root.
    for (open, close) in [(&b""[..], b'd'), (&b"}"[..], b'u')] {
        let event = [open, b"(\x8c\x06action\x8c\x05alloc\x8c\x05extra](K\x01N]eq\x05", &[close]].concat();
        for (key, is_needed) in [("segments", true), ("something", false)] {
            let key = [&[0x8c, key.len() as u8], key.as_bytes(), b"h\x05"].concat();
            let root = [b"0}(", &key[..], b"\x8c\x0ddevice_traces]u."].concat();
            let bytes = [b"\x80\x04", &event[..], &root].concat();
            let error = transcode(&mut Cursor::new(&bytes[..])).err().map(|error| error.to_string());
            let expected = "is not a PyTorch memory snapshot: two parts of it share one list".to_owned();
            assert_eq!(error, is_needed.then_some(expected));
        }
    }
}

#[test]
fn other_files_say_what_they_are_not() {
    let error = |bytes: &[u8]| transcode(&mut Cursor::new(bytes)).unwrap_err().to_string();
    assert_eq!(
        error(b"{\"a\": 1}"),
        "is not a PyTorch memory snapshot: it has neither segments nor device_traces"
    );
    assert_eq!(
        error(b"\x80\x04K\x01."),
        "is not a PyTorch memory snapshot: it has neither segments nor device_traces"
    );
    assert!(
        error(b"{\"segments\": [").starts_with("is damaged: EOF while parsing"),
        "{}",
        error(b"{\"segments\": [")
    );
    assert_eq!(error(b"\x80\x04}"), "is damaged at byte 3: it ends too early; was the file copied in full?");
    assert!(error(&gzip(b"{\"segments\": []}")[..20]).starts_with("cannot be read"));
}

/// Flips, cuts, repeats and inserts bytes. A result may be a trace or an error, never a panic.
#[test]
fn mutated_snapshots_neither_panic_nor_run_anything() {
    let mut model = AllocatorModel::new(false);
    for number in 0..60u64 {
        model.allocate(number * 70_001 % (3 << 20) + 1, number % 2, number as usize, 10 + number as u32 % 4);
        if number % 3 == 0 {
            model.free(number as usize * 7, number % 2 == 0);
        }
    }
    let mut snapshot = with_new_fields(model.snapshot(100));
    let mut seeds: Vec<Vec<u8>> = vec![json_bytes(&snapshot)];
    seeds.extend((2..=5).map(|protocol| pickle(&snapshot, PickleStyle { protocol, shares: true })));
    snapshot["gpumemtrace"] = serde_json::json!({ "format_version": 1 });
    snapshot["device_traces"][0][3]["action"] = serde_json::json!("user_defined");
    snapshot["device_traces"][0][3]["user_metadata"] = serde_json::json!("phase load begins");
    seeds.push(pickle(&snapshot, PickleStyle { protocol: 4, shares: false }));
    let pickled = seeds[1].clone();
    seeds.extend([page(&pickled), stored_zip("a.pickle", &pickled), xz(&pickled), gzip(&pickled)]);
    let wanted = std::env::var("GPUMEMTRACE_MUTATIONS").ok().and_then(|number| number.parse().ok());
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below.max(1) as u64) as usize
    };
    let mut read = 0;
    for number in 0..wanted.unwrap_or(MUTATIONS) {
        let mut bytes = seeds[number as usize % seeds.len()].clone();
        for _ in 0..=next(3) {
            let at = next(bytes.len());
            match next(5) {
                0 => bytes[at] ^= 1 << next(8),
                1 => bytes[at] = next(256) as u8,
                2 => bytes.truncate(at.max(2)),
                3 => {
                    let end = (at + next(64)).min(bytes.len());
                    let piece = bytes[at..end].to_vec();
                    let to = next(bytes.len());
                    bytes.splice(to..to, piece);
                }
                _ => {
                    let end = (at + next(16)).min(bytes.len());
                    bytes.drain(at..end);
                }
            }
            if bytes.is_empty() {
                bytes.push(0x80);
            }
        }
        read += u64::from(transcode(&mut Cursor::new(&bytes[..])).is_ok());
    }
    assert!(read > 0, "some mutations change only numbers");
}
