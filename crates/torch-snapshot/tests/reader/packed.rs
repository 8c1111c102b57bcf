//! Snapshots in archives, compressed and in pages.

use std::io::{Cursor, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gpumemtrace_torch_snapshot::{SnapshotError, looks_like_snapshot, transcode, unpack_start};
use lzma_rust2::{XzOptions, XzWriter};

use super::allocator_model::AllocatorModel;
use super::pickle_writer::{PickleStyle, pickle};
use super::{gzip, json_bytes};

/// A page like those of `torch.cuda._memory_viz`.
pub(super) fn page(bytes: &[u8]) -> Vec<u8> {
    let text = STANDARD.encode(bytes);
    let script = "import {add_local_files} from \"https://x/MemoryViz.js\"";
    format!("\n<!DOCTYPE html>\n<script>{script}\nconst local_files = [{{\"name\": \"a\", \"base64\": \"{text}\"}}]\n")
        .into_bytes()
}

pub(super) fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut packed = XzWriter::new(Vec::new(), XzOptions::with_preset(0)).unwrap();
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// An archive with one entry that is not compressed.
pub(super) fn stored_zip(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    let numbers = [crc.sum(), bytes.len() as u32, bytes.len() as u32].map(u32::to_le_bytes).concat();
    let name_len = (name.len() as u16).to_le_bytes();
    // Version, flags, method, time and date.
    let facts = [20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let local = [b"PK\x03\x04", &facts[..], &numbers, &name_len, &[0; 2], name.as_bytes(), bytes].concat();
    let entry =
        [b"PK\x01\x02\x14\x00", &facts[..], &numbers, &name_len, &[0; 12], &[0; 4], name.as_bytes()].concat();
    let directory = [entry.len() as u32, local.len() as u32].map(u32::to_le_bytes).concat();
    let end = [b"PK\x05\x06", &[0, 0, 0, 0, 1, 0, 1, 0][..], &directory, &[0, 0]].concat();
    [local, entry, end].concat()
}

fn snapshot() -> Vec<u8> {
    let mut model = AllocatorModel::new(false);
    model.allocate(5000, 0, 0, 11);
    model.allocate(3 << 20, 0, 0, 12);
    pickle(&model.snapshot(9), PickleStyle { protocol: 4, shares: true })
}

fn error_of(bytes: &[u8]) -> String {
    transcode(&mut Cursor::new(bytes)).unwrap_err().to_string()
}

#[test]
fn packed_snapshots_give_the_same_trace() {
    let plain = snapshot();
    let expected = transcode(&mut Cursor::new(&plain)).unwrap();
    for packed in [
        page(&plain),
        xz(&plain),
        gzip(&xz(&plain)),
        gzip(&page(&plain)),
        stored_zip("a.pickle", &plain),
        stored_zip("a/data.pkl", &plain),
        stored_zip("a.html", &page(&plain)),
        stored_zip("a.pickle.xz", &xz(&plain)),
    ] {
        assert!(looks_like_snapshot(&packed[..packed.len().min(512)]));
        assert!(transcode(&mut Cursor::new(&packed)).unwrap() == expected);
    }
    assert_eq!(unpack_start(&gzip(b"hello")), b"hello");
    assert_eq!(unpack_start(b"hello"), b"hello");
}

#[test]
fn nesting_of_compressions_is_limited() {
    let mut packed = snapshot();
    for _ in 0..4 {
        packed = gzip(&packed);
    }
    assert!(error_of(&packed).contains("it is neither a pickle"));
}

#[test]
fn archives_with_strange_directories_are_refused() {
    let whole = stored_zip("a.json", &json_bytes(&serde_json::json!({ "segments": [] })));
    assert!(transcode(&mut Cursor::new(&whole)).is_ok());
    let end = whole.len() - 22;
    for (at, value) in [
        (end + 12, 0xff),      // The directory is longer than the file.
        (end + 19, 0x7f),      // It begins behind the end.
        (whole.len() - 22, 0), // There is no end record.
        (end - 10, 0xff),      // The entry begins elsewhere.
    ] {
        let mut changed = whole.clone();
        changed[at] = value;
        let result = transcode(&mut Cursor::new(&changed));
        assert!(
            matches!(result, Err(SnapshotError::Archive(_) | SnapshotError::NoneInArchive { .. })),
            "{at}"
        );
    }
    let mut encrypted = whole.clone();
    let flags = whole.windows(4).position(|part| part == b"PK\x01\x02").unwrap() + 8;
    encrypted[flags] = 1;
    assert_eq!(error_of(&encrypted), "is a zip archive with a password; unpack it first");
    let mut other = whole.clone();
    other[flags + 2] = 9;
    assert_eq!(error_of(&other), "is a zip archive with a compression other than deflate; unpack it first");
    assert_eq!(error_of(b"PK\x03\x04"), "is a zip archive that is damaged or was cut");
}
