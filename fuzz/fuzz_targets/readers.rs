//! One program for all readers: which one, `GPUMEMTRACE_FUZZ` says.
//!
//! Constraint: instrumented code is slow to build. Consequence: it is built once, and a target is one line of this table.
//! `scripts/fuzz` builds it, gives each target its time and its corpus, and says how to reproduce what it finds.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use gpumemtrace_format::block::unpack_pieces;
use gpumemtrace_format::{defs, index, links, meta, rows, symbols};
use gpumemtrace_fuzz::{again, files, rings, seeds};
use libfuzzer_sys::fuzz_target;

type Target = fn(&[u8]);

/// What can be fuzzed. `again` decodes a payload, and what it decoded to after it was encoded again.
const TARGETS: &[(&str, Target)] = &[
    ("trace", files::trace),
    ("blocks", files::blocks),
    ("ring", rings::file),
    ("records", rings::records),
    ("events", |bytes| again(bytes, rows::decode, |events| rows::encode(events, 0).payload)),
    ("pieces", |bytes| drop(unpack_pieces(bytes, 8192))),
    ("codes", |bytes| again(bytes, defs::decode_codes, |codes| defs::encode_codes(codes))),
    ("py_nodes", |bytes| again(bytes, defs::decode_py_nodes, |nodes| defs::encode_py_nodes(nodes))),
    ("native_nodes", |bytes| {
        again(bytes, defs::decode_native_nodes, |nodes| defs::encode_native_nodes(nodes))
    }),
    ("modules", |bytes| again(bytes, defs::decode_modules, |modules| defs::encode_modules(modules))),
    ("links", |bytes| drop(links::decode_links(bytes))),
    ("names", |bytes| again(bytes, symbols::decode_names, |names| symbols::encode_names(names))),
    ("index", |bytes| again(bytes, index::Index::decode, index::Index::encode)),
    ("tail", |bytes| {
        let _ = index::Tail::decode(bytes);
    }),
    ("meta", |bytes| again(bytes, meta::Meta::decode, meta::Meta::encode)),
    ("end", |bytes| again(bytes, meta::End::decode, meta::End::encode)),
    ("line_table", files::line_table),
    ("cache", files::cache),
    ("elf", files::elf),
    ("macho", files::macho),
];

static CHOSEN: OnceLock<Target> = OnceLock::new();

/// Reads the environment; without a target it does something else and ends.
fn choose() {
    if let Some(folder) = std::env::var_os("GPUMEMTRACE_FUZZ_SEEDS") {
        seeds::write(Path::new(&folder)).expect("seeds");
        std::process::exit(0);
    }
    let wanted = std::env::var("GPUMEMTRACE_FUZZ").unwrap_or_default();
    let Some((_, target)) = TARGETS.iter().find(|(name, _)| *name == wanted) else {
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
