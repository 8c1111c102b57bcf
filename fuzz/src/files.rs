//! Whole files: traces, cached names, libraries and programs.

use std::io::{Cursor, Write};
use std::path::PathBuf;
use std::sync::OnceLock;

use gpumemtrace_cli::{launch::injectable, symbolize};
use gpumemtrace_multirun::{JobReport, Summary};
use gpumemtrace_format::block::{BLOCK_SYNC, file_header};
use gpumemtrace_format::reader::TraceBytes;
use gpumemtrace_format::ring::RingImage;
use gpumemtrace_format::{CodeDef, ModuleDef, NamedFrame};
use gpumemtrace_replay::callsite::{NameScope, Symbolizer};
use gpumemtrace_replay::report::UnnamedReason;
use gpumemtrace_replay::{Input, RingFile, analyse, report, symbolize_report};

use crate::{FuzzInput, rings};

/// In the input of [`valid_trace`], the block kind that stands for a ring file.
pub const RING: u8 = 0xff;

/// The input is a trace.
pub fn trace(bytes: &[u8]) {
    replay(bytes, RingFile::Absent);
}

/// The input is the blocks of a trace and perhaps a ring: all checksums are correct.
pub fn blocks(bytes: &[u8]) {
    let (file, ring) = valid_trace(bytes);
    let ring = ring.map_or(RingFile::Absent, |ring| match RingImage::decode(&ring) {
        Ok(image) => RingFile::Loaded(Box::new(image)),
        Err(error) => RingFile::Unusable(error.to_string()),
    });
    replay(&file, ring);
}

/// The input is a snapshot of PyTorch.
pub fn snapshot(bytes: &[u8]) {
    let looks = gpumemtrace_torch_snapshot::looks_like_snapshot(bytes);
    if let Ok(trace) = gpumemtrace_torch_snapshot::transcode(&mut Cursor::new(bytes)) {
        assert!(looks, "the command would not read it");
        replay(&trace, RingFile::Absent);
    }
}

/// Makes a trace from `(kind:u8 len:u16 payload)*`, and a ring file from the payload of kind
/// [`RING`].
pub fn valid_trace(bytes: &[u8]) -> (Vec<u8>, Option<Vec<u8>>) {
    let (mut file, mut ring) = (file_header().to_vec(), None);
    let mut bytes = FuzzInput(bytes);
    while !bytes.0.is_empty() {
        let (kind, len) = (bytes.number(1) as u8, bytes.number(2) as usize);
        let payload = bytes.take(len);
        if kind == RING {
            ring = Some(rings::valid_ring(payload));
        } else {
            put_block(&mut file, kind, payload);
        }
    }
    (file, ring)
}

fn put_block(file: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    let begin = file.len();
    let len = (payload.len() as u32).to_le_bytes();
    file.extend(BLOCK_SYNC);
    file.extend([kind, 0, 0, 0]);
    file.extend(len);
    file.extend(len);
    file.extend(crc32c::crc32c(payload).to_le_bytes());
    let crc = crc32c::crc32c(&file[begin..]);
    file.extend(crc.to_le_bytes());
    file.extend(payload);
}

fn replay(bytes: &[u8], ring: RingFile) {
    let bytes = std::sync::Arc::<[u8]>::from(bytes);
    let open = || Ok(Box::new(std::io::Cursor::new(bytes.clone())) as Box<dyn TraceBytes>);
    let Ok(analysis) = analyse(Input {
        path: "run.trace",
        open: &open,
        ring,
        is_locked: false,
        files: Vec::new(),
        absent: Vec::new(),
    }) else {
        return;
    };
    let analyses = [analysis];
    let mut full = report(&analyses, &[]);
    symbolize_report(&mut full, &analyses, NameScope::ALL, &mut EvenAddressesUnnamed);
    serde_json::to_string(&full).expect("a report is JSON");
}

/// Names odd addresses only.
struct EvenAddressesUnnamed;

impl Symbolizer for EvenAddressesUnnamed {
    fn resolve(&mut self, _: &ModuleDef, address: u64) -> Result<Vec<NamedFrame>, UnnamedReason> {
        if address.is_multiple_of(2) {
            return Err(UnnamedReason::NoSymbols);
        }
        Ok(vec![NamedFrame { function: "_PyEval_EvalFrameDefault".into(), file: "".into(), line: 0 }])
    }
}

/// `python:u16 first_line:u32 truncated:u8 offset:u32`, then a line table.
pub fn line_table(bytes: &[u8]) {
    let mut bytes = FuzzInput(bytes);
    let code = CodeDef {
        python: bytes.number(2) as u16,
        first_line: bytes.number(4) as i32,
        truncated: bytes.number(1) != 0,
        ..CodeDef::default()
    };
    let offset = bytes.number(4) as i32;
    let code = CodeDef { line_table: bytes.0.to_vec(), ..code };
    let line = gpumemtrace_replay::callsite::line_at(&code, offset);
    assert_ne!(line, Some(0));
}

/// The input is a file of cached names, and its blocks: all checksums are correct.
pub fn cache(bytes: &[u8]) {
    let _ = symbolize::read_cached_names(bytes, &[1; 20], None);
    let _ = symbolize::read_cached_names(&valid_trace(bytes).0[..], &[1; 20], Some("lib"));
}

/// The input is a summary of traces.
pub fn summary(bytes: &[u8]) {
    let Some(summary) = std::str::from_utf8(bytes).ok().and_then(|text| Summary::parse(text).ok()) else {
        return;
    };
    let written = serde_json::to_string(&summary).expect("JSON");
    let again = Summary::parse(&written).expect("a summary is read back");
    assert_eq!(serde_json::to_string(&again.clone().merge(summary)).expect("JSON"), written);
    let _ = serde_json::to_string(&JobReport::of(&again)).expect("JSON");
}

/// Two `address:u32`, then the file of a library.
pub fn elf(bytes: &[u8]) {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let folder =
            if PathBuf::from("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        folder.join(format!("gpumemtrace-fuzz-{}.so", std::process::id()))
    });
    let mut bytes = FuzzInput(bytes);
    let addresses = [bytes.number(4), bytes.number(4), u64::MAX];
    let mut file = std::fs::File::create(path).expect("a temporary file");
    file.write_all(bytes.0).expect("free space");
    drop(file);
    let _ = symbolize::frames_in_file(path, &addresses);
}

/// The input is a macOS program, and each part of one that has a parser of its own.
pub fn macho(bytes: &[u8]) {
    if let Some(injectable::ExecutableKind::MachO(slices)) = injectable::ExecutableKind::read(bytes) {
        assert!(!slices.is_empty() && slices.len() <= 16);
    }
    let _ = injectable::CodeSignature::read(bytes);
    let _ = (injectable::parse_plist(bytes), injectable::parse_der(bytes));
}
