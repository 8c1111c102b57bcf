//! One program with all fuzz targets; `GPUMEMTRACE_FUZZ` selects the target.
//!
//! Instrumented code is slow to build, so it is built once, and a target is one line of a table.
//! `scripts/fuzz` builds and runs it, and prints how to reproduce a crash.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use gpumemtrace_format::block::unpack_pieces;
use gpumemtrace_format::{definitions, event_block, index, meta};
use gpumemtrace_fuzz::{files, rings, round_trip, seeds};
use libfuzzer_sys::fuzz_target;

type FuzzTarget = fn(&[u8]);

/// The targets by name. `round_trip` decodes a payload, and again what it encodes to.
const TARGETS: &[(&str, FuzzTarget)] = &[
    ("trace", files::trace),
    ("blocks", files::blocks),
    ("snapshot", files::snapshot),
    ("ring", rings::file),
    ("records", rings::records),
    ("events", |bytes| {
        round_trip(bytes, event_block::decode, |events| event_block::encode(events, 0).payload)
    }),
    ("pieces", |bytes| drop(unpack_pieces(bytes, 8192))),
    ("codes", |bytes| round_trip(bytes, definitions::decode_codes, |codes| definitions::encode_codes(codes))),
    ("py_nodes", |bytes| {
        round_trip(bytes, definitions::decode_py_nodes, |nodes| definitions::encode_py_nodes(nodes))
    }),
    ("native_nodes", |bytes| {
        round_trip(bytes, definitions::decode_native_nodes, |nodes| definitions::encode_native_nodes(nodes))
    }),
    ("modules", |bytes| {
        round_trip(bytes, definitions::decode_modules, |modules| definitions::encode_modules(modules))
    }),
    ("frame_links", |bytes| drop(definitions::decode_frame_links(bytes))),
    ("names", |bytes| round_trip(bytes, definitions::decode_names, |names| definitions::encode_names(names))),
    ("index", |bytes| round_trip(bytes, index::Index::decode, index::Index::encode)),
    ("tail", |bytes| {
        let _ = index::TraceTail::decode(bytes);
    }),
    ("meta", |bytes| round_trip(bytes, meta::Meta::decode, meta::Meta::encode)),
    ("end", |bytes| round_trip(bytes, meta::End::decode, meta::End::encode)),
    ("line_table", files::line_table),
    ("cache", files::cache),
    ("elf", files::elf),
    ("summary", files::summary),
    ("macho", files::macho),
];

static CHOSEN: OnceLock<FuzzTarget> = OnceLock::new();

/// Selects the target. Without one it writes seeds or lists the targets, and exits.
fn choose() {
    if let Some(folder) = std::env::var_os("GPUMEMTRACE_FUZZ_SEEDS") {
        seeds::write(Path::new(&folder)).expect("seeds");
        std::process::exit(0);
    }
    let name = std::env::var("GPUMEMTRACE_FUZZ").unwrap_or_default();
    let Some((_, target)) = TARGETS.iter().find(|(target_name, _)| *target_name == name) else {
        for (name, _) in TARGETS {
            println!("{name}");
        }
        std::process::exit(0);
    };
    CHOSEN.get_or_init(|| *target);
}

fuzz_target!(init: choose(), |bytes: &[u8]| {
    if let Some(target) = CHOSEN.get() {
        target(bytes);
    }
});
