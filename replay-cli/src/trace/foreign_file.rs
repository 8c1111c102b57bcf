//! Names files of other tools that a user may give in place of a trace.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use gpumemtrace_format::block::FILE_MAGIC;
use gpumemtrace_torch_snapshot::unpack_start;

/// Bytes at the start of a file by which its format is recognized. zstd unpacks whole blocks, of up
/// to 128 KiB.
const SNIFF_BYTES: usize = 256 << 10;

/// Advice for a file that is not a recording of PyTorch's memory.
const INSTEAD: &str =
    "record the program with gpumemtrace run, or give the file of torch.cuda.memory._dump_snapshot()";
const UNPACK: &str = "unpack it, and give the trace or snapshot in it";

/// A format that is not read. The texts continue a sentence that begins with the file's name.
struct ForeignFormat {
    what: &'static str,
    instead: &'static str,
}

impl ForeignFormat {
    const fn recording(what: &'static str) -> Self {
        Self { what, instead: INSTEAD }
    }
}

/// Why a file of another tool is not read: what it is, and what to give instead. `None` for
/// everything that may be a trace or a snapshot, and for files of unknown formats.
pub(crate) fn describe_foreign_file(path: &Path, file: &File) -> Option<String> {
    // Most files are traces, and there may be thousands.
    if read_start(file, FILE_MAGIC.len()) == FILE_MAGIC {
        return None;
    }
    let first = read_start(file, SNIFF_BYTES);
    if first.is_empty() {
        return is_named_as_snapshot(path).then(|| {
            "is empty: the program was stopped before it had written the snapshot, or the disk was full; take \
             the snapshot again"
                .to_owned()
        });
    }
    let ForeignFormat { what, instead } =
        format_by_start(&first).or_else(|| format_by_name(path)).or_else(|| {
            let unpacked = unpack_start(&first);
            format_of_contents(&unpacked)
        })?;
    Some(format!("is {what}: {instead}"))
}

/// The first bytes of a file, at most `most`.
fn read_start(file: &File, most: usize) -> Vec<u8> {
    let mut first = vec![0; most];
    let mut len = 0;
    while let Ok(read @ 1..) = file.read_at(&mut first[len..], len as u64) {
        len += read;
    }
    first.truncate(len);
    first
}

/// True for the names that people give to snapshots.
fn is_named_as_snapshot(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    ["pickle", "pkl", "json", "html", "pt", "pth"]
        .iter()
        .any(|extension| name.split('.').skip(1).any(|part| part == *extension))
}

/// The format of a file by its first bytes, which no snapshot has.
fn format_by_start(first: &[u8]) -> Option<ForeignFormat> {
    let starts = |magic: &[u8]| first.starts_with(magic);
    Some(match () {
        () if starts(b"SQLite format 3\0") => {
            ForeignFormat::recording("an SQLite database, such as nsys export writes")
        }
        () if starts(b"memray") => {
            ForeignFormat::recording("a recording of memray, which sees host memory only")
        }
        () if starts(b"NVR\0") => ForeignFormat::recording("a report of Nsight Compute"),
        () if starts(b"Thread,Time,Action,Pointer,Size,Stream") => {
            ForeignFormat::recording("a log of RMM, which has no call sites")
        }
        () if starts(b"BZh") => ForeignFormat { what: "compressed with bzip2", instead: UNPACK },
        () if starts(b"7z\xbc\xaf\x27\x1c") => ForeignFormat { what: "a 7-Zip archive", instead: UNPACK },
        () if starts(b"Rar!\x1a\x07") => ForeignFormat { what: "a RAR archive", instead: UNPACK },
        () if first.get(257..262) == Some(b"ustar") => {
            ForeignFormat { what: "a tar archive", instead: UNPACK }
        }
        () => return None,
    })
}

/// The format of a file that only its name shows.
fn format_by_name(path: &Path) -> Option<ForeignFormat> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    Some(match () {
        () if ends(&[".nsys-rep", ".qdrep", ".qdstrm"]) => {
            ForeignFormat::recording("a report of Nsight Systems (nsys)")
        }
        () if ends(&[".ncu-rep"]) => ForeignFormat::recording("a report of Nsight Compute"),
        () if ends(&[".xplane.pb"]) => ForeignFormat::recording("a profile of XLA (JAX or TensorFlow)"),
        () if ends(&[".pftrace", ".perfetto-trace"]) => {
            ForeignFormat::recording("a Perfetto timeline, which does not record every block")
        }
        () => return None,
    })
}

/// The format of unpacked bytes.
fn format_of_contents(first: &[u8]) -> Option<ForeignFormat> {
    let has = |text: &str| first.windows(text.len()).any(|part| part == text.as_bytes());
    let begins_with = first.iter().find(|byte| !byte.is_ascii_whitespace())?;
    if first.starts_with(&FILE_MAGIC) {
        return Some(ForeignFormat { what: "a compressed trace", instead: "unpack it first" });
    }
    Some(match begins_with {
        b'{' | b'[' if has("\"segments\"") || has("\"device_traces\"") || has("\"total_size\"") => {
            return None;
        }
        b'{' | b'[' if has("\"traceEvents\"") || has("\"ph\"") => ForeignFormat::recording(
            "a profiler timeline, such as torch.profiler exports, which does not record every block",
        ),
        b'{' if has("\"deviceProperties\"") => ForeignFormat::recording("a timeline of torch.profiler"),
        b'<' if has("gpumemtrace") => ForeignFormat {
            what: "a page of gpumemtrace html",
            instead: "give the trace that it was made of",
        },
        b'<' if has("<html") || has("<HTML") || has("<!doctype html") || has("<!DOCTYPE html") => {
            ForeignFormat {
                what: "an HTML page without a snapshot in it",
                instead: "give a page that torch.cuda._memory_viz wrote, or the snapshot itself",
            }
        }
        b'v' if is_heaptrack(first) => {
            ForeignFormat::recording("a recording of heaptrack, which sees host memory only")
        }
        _ if is_pprof(first) => ForeignFormat::recording(
            "a pprof profile (such as jax.profiler.save_device_memory_profile() writes), which has totals but no events",
        ),
        _ => return None,
    })
}

/// The first line of heaptrack's files: `v`, its version in hexadecimal, and the file's version.
fn is_heaptrack(first: &[u8]) -> bool {
    let line = first.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let is_hex = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_hexdigit);
    words.next() == Some(b"v") && words.next().is_some_and(is_hex) && words.next().is_some_and(is_hex)
}

/// A pprof profile begins with the type of its samples: field 1, with the numbers of two texts.
fn is_pprof(first: &[u8]) -> bool {
    matches!(first, [0x0a, 4, 0x08, _, 0x10, _, ..] | [0x0a, 2, 0x08 | 0x10, _, ..])
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn describe(name: &str, bytes: &[u8]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        describe_foreign_file(&path, &File::open(&path).unwrap())
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn files_of_other_tools_are_named() {
        let timeline = b"{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": [],\n  \"traceEvents\": [";
        let heaptrack = b"v 10500 3\nx 1c /usr/bin/python3\n";
        let pprof = b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04";
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        let zstd = zstd::encode_all(&heaptrack[..], 3).unwrap();
        for (name, bytes, words) in [
            ("a.sqlite", &b"SQLite format 3\0..."[..], "an SQLite database, such as nsys export"),
            ("a.nsys-rep", b"\x01\x02", "a report of Nsight Systems"),
            ("memray.bin", b"memray\x0b\0\0\0", "a recording of memray"),
            ("heaptrack.python.1.gz", &gzip(heaptrack), "a recording of heaptrack"),
            ("heaptrack.python.1.zst", &zstd, "a recording of heaptrack"),
            ("memory.prof", &gzip(pprof), "a pprof profile (such as jax.profiler"),
            ("trace.json", timeline, "a profiler timeline"),
            ("trace.json.gz", &gzip(timeline), "a profiler timeline"),
            ("run.html", b"<!doctype html>\n<title>gpumemtrace</title>", "a page of gpumemtrace html"),
            ("index.html", b"<!doctype html>\n<html>hello", "an HTML page without a snapshot"),
            ("rmm.csv", b"Thread,Time,Action,Pointer,Size,Stream\n", "a log of RMM"),
            ("a.tar", &tar, "a tar archive"),
            ("a.pickle", b"", "empty: the program was stopped"),
            ("run.trace.gz", &gzip(b"gpumtrc\n..."), "a compressed trace: unpack it first"),
            ("a.pickle.gz", b"", "empty: the program was stopped"),
        ] {
            let why = describe(name, bytes).unwrap_or_default();
            assert!(why.starts_with(&format!("is {words}")), "{name}: {why}");
        }
    }

    #[test]
    fn traces_snapshots_and_unknown_files_are_left_to_their_readers() {
        for (name, bytes) in [
            ("run.trace", &b"gpumtrc\n..."[..]),
            ("run.trace", b""),
            ("a.pickle", b"\x80\x04}"),
            ("a.json", b"{\"segments\": [], \"device_traces\": [[{\"ph\": 1}]]}"),
            ("a.json", b"[{\"device\": 0, \"total_size\": 1, \"blocks\": []}]"),
            ("a.bin", b"hello"),
        ] {
            assert_eq!(describe(name, bytes), None, "{name}");
        }
    }
}
