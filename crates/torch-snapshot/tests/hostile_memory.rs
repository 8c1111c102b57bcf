//! Small files that name one thing many times: memory and time are bounded by the file.

mod counting;
mod program;

use std::io::Cursor;

use counting::peak_bytes_of;
use gpumemtrace_torch_snapshot::{SnapshotError, transcode};
use program::Program;

const MIB: usize = 1 << 20;

/// Reads a file, and returns the result and the most bytes that this took.
fn read(bytes: &[u8]) -> (Result<Vec<u8>, SnapshotError>, usize) {
    peak_bytes_of(|| transcode(&mut Cursor::new(bytes)))
}

/// The reading fails with these words, and takes at most so many bytes.
#[track_caller]
fn assert_refused(bytes: &[u8], words: &str, most: usize) {
    let (result, peak) = read(bytes);
    assert!(peak < most, "{} MiB for a file of {} KiB", peak / MIB, bytes.len() / 1024);
    let error = result.map(|trace| trace.len()).expect_err(words).to_string();
    assert!(error.contains(words), "{error}");
}

/// A dictionary of a block, and then a list that is named by `segments` segments.
fn segments_that_share(list: impl Fn(&mut Program), segments: usize) -> Vec<u8> {
    let mut file = Program::default();
    file.open_dict().text("x").open_list();
    list(&mut file);
    file.close_list(1).text("segments").open_list();
    for _ in 0..segments {
        file.open_dict().text("total_size").int(512).text("blocks").get(1).close_dict();
    }
    file.close_list(2).close_dict().finish()
}

fn put_block(file: &mut Program, address: u32) {
    file.open_dict().text("state").text("active_allocated").text("size").int(512);
    file.text("address").int(address).close_dict();
}

#[test]
fn list_of_blocks_belongs_to_one_segment() {
    let one_block_often = |file: &mut Program| {
        put_block(file, 0);
        file.put(9);
        for _ in 0..100_000 {
            file.get(9);
        }
    };
    assert_refused(&segments_that_share(one_block_often, 50), "share one list", 32 * MIB);
    let blocks = |file: &mut Program| (0..100).for_each(|at| put_block(file, at * 512));
    assert!(read(&segments_that_share(blocks, 1)).0.is_ok());
    assert_refused(&segments_that_share(blocks, 2), "share one list", MIB);
}

/// A trace with as many pieces as `pieces`, named by `devices` devices.
fn shared_trace(pieces: usize, devices: usize) -> Vec<u8> {
    let mut file = Program::default();
    file.open_dict().text("x").open_list();
    for at in 0..pieces {
        file.open_dict().text("action").text("alloc").text("addr").int(at as u32).close_dict();
        file.int(0);
    }
    file.close_list(1).text("device_traces").open_list();
    for _ in 0..devices {
        file.get(1);
    }
    file.close_list(2).close_dict().finish()
}

#[test]
fn events_belong_to_one_device() {
    assert!(read(&shared_trace(1000, 1)).0.is_ok());
    assert_refused(&shared_trace(1000, 2), "share one list", 2 * MIB);
    assert_refused(&shared_trace(1000, 20_000), "255 devices", 4 * MIB);
    assert_refused(&shared_trace(10_000, 250), "pieces of traces", 8 * MIB);
}

#[test]
fn list_in_itself_is_refused() {
    let mut file = Program::default();
    file.raw(b"]");
    for _ in 0..(1 << 20) {
        file.raw(b"2a");
    }
    assert_refused(&file.finish(), "contains itself", MIB);
}

#[test]
fn lists_that_are_replaced_and_shared_are_counted() {
    let mut file = Program::default();
    file.raw(b"}");
    for _ in 0..2_200_000 {
        // A list that was twice on the stack, under a key that is no text.
        file.raw(b"K\x00]20s");
    }
    assert_refused(&file.finish(), "values outside of events", 200 * MIB);
}

#[test]
fn memo_is_bounded_by_the_file() {
    let mut file = Program::default();
    file.raw(b"]").raw(&vec![0x94; 4 << 20]);
    assert_refused(&file.finish(), "shared values for its size", 12 * MIB);
    file.raw(b"\x80\x02K\x00").raw(&vec![0x94; 4 << 20]);
    assert_refused(&file.finish(), "shared numbers", 48 * MIB);
    let mut file = Program::default();
    for _ in 0..(1 << 19) {
        file.raw(b"K\x00q\x000");
    }
    file.open_dict().text("segments").open_list().close_list(1).close_dict();
    let (result, peak) = read(&file.finish());
    assert!(result.is_ok() && peak < 8 * MIB, "{} MiB", peak / MIB);
}

#[test]
fn strings_of_json_are_limited() {
    let file = format!("{{\"segments\": [], \"x\": \"{}\"}}", "x".repeat(64 * MIB));
    assert_refused(file.as_bytes(), "a string has more than 16777216 bytes", 40 * MIB);
}

/// Events with each pair of `stacks` stacks and as many lists of forward frames.
fn forward_pairs(stacks: u32, frames: u32) -> Vec<u8> {
    let mut file = Program::default();
    file.open_dict().text("x").open_list();
    for frame in 0..stacks {
        file.open_dict().text("filename").text("a.so").text("name").text("f").text("line").int(frame);
        file.close_dict().put(10_000 + frame);
    }
    for stack in 0..stacks {
        file.open_list();
        for _ in 0..frames {
            file.get(10_000);
        }
        file.get(10_000 + stack).close_list(20_000 + stack);
        let line = format!("File \"a.py\", line {stack}, in f");
        file.open_list().text(&line).close_list(30_000 + stack);
    }
    file.close_list(1).text("device_traces").open_list().open_list();
    for pair in 0..stacks * stacks {
        file.open_dict().text("action").text("alloc").text("addr").int(pair);
        file.text("frames").get(20_000 + pair / stacks);
        file.text("forward_frames").get(30_000 + pair % stacks).close_dict();
    }
    file.close_list(2).close_list(3).close_dict().finish()
}

#[test]
fn stacks_of_forward_calls_are_limited() {
    assert!(read(&forward_pairs(10, 100)).0.is_ok());
    assert_refused(&forward_pairs(110, 3000), "frames in distinct stacks", 128 * MIB);
}

/// CPU time of this thread.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// Small pieces, and as often the whole range around them.
fn pieces_and_whole(pieces: u64, event: impl Fn(u64, u64) -> String) -> String {
    let small = (0..pieces).map(|at| event(at * 1024, 512));
    let whole = (0..pieces).map(|_| event(0, pieces * 1024));
    small.chain(whole).collect::<Vec<_>>().join(",")
}

#[test]
fn time_grows_with_the_events_not_with_their_square() {
    let freed = |addr: u64, size: u64| {
        format!(r#"{{"action": "segment_free", "addr": {addr}, "size": {size}, "stream": 0}}"#)
    };
    let mapped =
        |at: u64| format!(r#"{{"action": "segment_map", "addr": {}, "size": 512, "stream": 0}}"#, at * 1024);
    let segment = |addr: u64, size: u64| {
        format!(r#"{{"address": {addr}, "total_size": {size}, "stream": 0, "blocks": []}}"#)
    };
    let count = 20_000;
    let frees = format!(r#"{{"device_traces": [[{}]]}}"#, pieces_and_whole(count, freed));
    let maps: Vec<String> = (0..count).map(mapped).collect();
    let segments: Vec<String> = (0..count).map(|_| segment(0, count * 1024)).collect();
    let ends =
        format!(r#"{{"device_traces": [[{}]], "segments": [{}]}}"#, maps.join(","), segments.join(","));
    for file in [frees, ends] {
        let begin = cpu_seconds();
        assert!(read(file.as_bytes()).0.is_ok());
        let took = cpu_seconds() - begin;
        assert!(took < 20.0, "{took} s");
    }
}
