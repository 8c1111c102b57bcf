use super::*;
use gpumemtrace_format::block::{BlockKind, encode_block, file_header};

const ID: &str = "0123456789abcdef0123456789abcdef";

fn write(folder: &Path, name: &str, id: &str, part: Option<u64>, more: &[u8]) -> PathBuf {
    let mut meta = Meta::default();
    meta.set_text("trace_id", id);
    if let Some(part) = part {
        meta.set_number("part", part);
    }
    let mut bytes = file_header().to_vec();
    bytes.extend(encode_block(BlockKind::META, &meta.encode(), 3));
    bytes.extend(more);
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn find(path: &Path, is_live: bool) -> TraceParts {
    let file = File::open(path).unwrap();
    let len_bytes = file.metadata().unwrap().len();
    TraceParts::find(path, file, len_bytes, is_live)
}

fn found(path: &Path) -> (Vec<String>, Vec<String>) {
    let parts = find(path, false);
    let name = |part: &PartFile| part.path.file_name().unwrap().to_string_lossy().into_owned();
    (parts.files.iter().map(name).collect(), parts.absent)
}

#[test]
fn parts_match_by_metadata_and_read_as_one_trace() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let block = encode_block(BlockKind(99), b"x", 3);
    let finished = [&block[..], &TraceTail { index_bytes: 0, end_bytes: 0 }.encode_block()].concat();
    let last = write(folder, "other.name", ID, Some(3), &block);
    write(folder, "run.01234567.part2.trace", ID, Some(2), &finished);
    write(folder, "run.01234567.part1.trace", ID, Some(1), &finished);
    // Half a block at the end, as a killed program leaves it.
    write(folder, "run.01234567.stacks.trace", ID, None, &block[..block.len() - 1]);
    // Files of another trace: another ID, the named part, a wrong part number, no trace at all.
    write(folder, "x.01234567.part1.trace", "0123456700000000", Some(1), b"");
    write(folder, "run.01234567.part3.trace", ID, Some(3), b"");
    write(folder, "run.01234567.part9.trace", ID, Some(2), b"");
    std::fs::write(folder.join("run.01234567.part0.trace"), "notes").unwrap();
    let (files, absent) = found(&last);
    let expected =
        ["run.01234567.stacks.trace", "run.01234567.part1.trace", "run.01234567.part2.trace", "other.name"];
    assert_eq!((files, absent), (expected.map(str::to_owned).to_vec(), Vec::new()));

    let parts = find(&last, false);
    let items: Vec<Item> = TraceReader::new(parts.open().unwrap()).unwrap().collect();
    let unknown = items.iter().filter(|item| matches!(item, Item::UnknownBlock(_))).count();
    assert_eq!((items.len(), unknown), (9, 3), "{items:?}");
    let first = parts.files[0].len_bytes;
    let spans = parts.spans();
    assert_eq!((spans[0].start, spans[0].skipped), (0, 0));
    assert_eq!((spans[1].start, spans[1].skipped), (first, FILE_HEADER_BYTES as u64));
}

#[test]
fn missing_parts_are_reported_unless_recorder_dropped_them() {
    let folder = tempfile::tempdir().unwrap();
    let last = write(folder.path(), "run.trace", ID, Some(5), b"");
    write(folder.path(), "run.01234567.part3.trace", ID, Some(3), b"");
    let (files, absent) = found(&last);
    assert_eq!(files, ["run.01234567.part3.trace", "run.trace"]);
    assert_eq!(absent.len(), 3, "{absent:?}");
    assert!(absent[0].contains("stacks") && absent[1].contains("3 parts from 1 to 4"), "{absent:?}");
    assert!(absent[2].contains("part3.trace was cut"), "{absent:?}");
    let tail = TraceTail { index_bytes: 0, end_bytes: 0 }.encode_block();
    write(folder.path(), "run.01234567.part3.trace", ID, Some(3), &tail);

    let mut meta = Meta::default();
    meta.set_number("dropped_parts", 2);
    let dropped = encode_block(BlockKind::META, &meta.encode(), 3);
    write(folder.path(), "run.01234567.stacks.trace", ID, None, &dropped);
    let (_, absent) = found(&last);
    assert!(absent.len() == 1 && absent[0].contains("1 part from 4 to 4"), "{absent:?}");
}

#[test]
fn trace_without_parts_is_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "run.trace", ID, None, b"");
    write(folder.path(), "run.01234567.part1.trace", ID, Some(1), b"");
    assert_eq!(found(&path), (vec!["run.trace".to_owned()], Vec::new()));
}

#[test]
fn parts_of_a_live_trace_stay_readable() {
    let folder = tempfile::tempdir().unwrap();
    let tail = TraceTail { index_bytes: 0, end_bytes: 0 }.encode_block();
    let block = encode_block(BlockKind(99), b"x", 3);
    let last = write(folder.path(), "run.trace", ID, Some(2), &block);
    let first = write(folder.path(), "run.01234567.part1.trace", ID, Some(1), &tail);
    let parts = find(&last, true);
    // What the recorder does to a trace with a limit on its size.
    std::fs::remove_file(first).unwrap();
    std::fs::rename(&last, folder.path().join("run.01234567.part2.trace")).unwrap();
    for _ in 0..2 {
        let items: Vec<Item> = TraceReader::new(parts.open().unwrap()).unwrap().collect();
        assert_eq!(items.iter().filter(|item| matches!(item, Item::UnknownBlock(_))).count(), 1);
    }
}

#[test]
fn part_that_the_recorder_moves_while_it_is_opened_is_the_one_that_is_read() {
    // The recorder unlocks a part that it finishes, so the trace may look as if it were not live.
    for is_live in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let block = encode_block(BlockKind(99), b"x", 3);
        let path = write(folder.path(), "run.trace", ID, Some(1), &block);
        let file = File::open(&path).unwrap();
        let len_bytes = file.metadata().unwrap().len();
        std::fs::rename(&path, folder.path().join("run.01234567.part1.trace")).unwrap();
        write(folder.path(), "run.trace", ID, Some(2), &[&block[..], &block].concat());
        let parts = TraceParts::find(&path, file, len_bytes, is_live);
        let reader = TraceReader::new(parts.open().unwrap()).unwrap();
        let items: Vec<Item> = reader.collect();
        let part = items.iter().find_map(|item| match item {
            Item::Meta(meta) => meta.number("part"),
            _ => None,
        });
        assert_eq!((parts.files.len(), items.len(), part), (1, 2, Some(1)), "{items:?}");
    }
}
