//! `gpumemtrace symbolize`: writes a copy of a trace with the names of its native addresses.
//!
//! The copy can be analysed on a machine without the traced libraries. The trace itself is never
//! written to. The copy gets its name once it is complete. Its NAMES blocks come first; all other
//! blocks are copied byte for byte, even if they are damaged or truncated.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::symbolize::Resolver;
use gpumemtrace_format::block::{BlockKind, FILE_HEADER_BYTES, MAX_PAYLOAD_BYTES, encode_block};
use gpumemtrace_format::definitions::encode_names;
use gpumemtrace_format::reader::{Item, TraceBytes, TraceReader};
use gpumemtrace_format::{AddressNames, Meta, ModuleNames};
use gpumemtrace_replay::callsite::symbolize_address;
use gpumemtrace_replay::ingest::{Definitions, TraceHead, find_losses, survey_events};
use gpumemtrace_replay::report::UnnamedReason;

use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::render::wording::describe_loss;
use crate::render::wording::recording::explain_unnamed;
use crate::terminal::escape::{escape_path, escape_text};
use crate::terminal::output_file::{OutputPath, TRACE};
use crate::terminal::paths::straighten_path;
use crate::terminal::stdout::print_text;
use crate::trace::open::TraceSource;
use crate::trace::ring::ring_path;

/// Addresses per NAMES block; a block with a payload over the limit is split.
const BLOCK_ADDRESSES: usize = 8192;
/// Bytes to copy at a time.
const COPY_BYTES: usize = 1 << 20;
/// The recorder's zstd level.
const LEVEL: i32 = 3;

#[derive(clap::Args)]
pub(crate) struct SymbolizeArgs {
    /// Trace file, such as run.trace
    trace: PathBuf,
    /// Output file [default: run.symbolized.trace beside run.trace]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Replace an existing output file
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &SymbolizeArgs) -> anyhow::Result<CliExit> {
    let (file, ring) = TraceSource::find(&args.trace)?;
    if file.is_locked() {
        let why = format!("{} is still being written; try again when the program has ended", file.name);
        return Err(UnreadableInput(why).into());
    }
    if file.is_snapshot() {
        let why =
            format!("{} is a snapshot of PyTorch, which has the names of its frames already", file.name);
        return Err(UnreadableInput(why).into());
    }
    let target = args.output.clone().unwrap_or_else(|| default_output(&args.trace));
    let copy = OutputPath::claim(&target, TRACE, args.force)?.private();
    let ring_copy = OutputPath::claim(&ring_path(&target), TRACE, args.force)?.private();
    let head = file.with_input(ring, TraceHead::read)?;
    let reasons = incomplete_reasons(&file, &head)?;

    let mut resolver = Resolver::for_user();
    let named = NamedAddresses::resolve(&head.definitions, &mut resolver);
    resolver.save_cache();
    let is_copied = head.ring.is_some() && !is_same_file(&args.trace, &target);
    write_copy(&file, &named, copy)?;
    if is_copied {
        let mut ring = ring_copy.begin()?;
        std::io::copy(&mut File::open(ring_path(&args.trace))?, &mut ring)?;
        ring.finish()?;
    }

    let mut out = String::new();
    writeln!(out, "{}: {} of {} native addresses have names", escape_path(&target), named.found, named.all)?;
    for ((why, module), addresses) in &named.reasons {
        let module = module.as_deref().map_or_else(|| "no module".to_owned(), straighten_path);
        writeln!(out, "  no names for {addresses} in {}: {}", escape_text(&module), explain_unnamed(*why))?;
    }
    if named.all == 0 {
        writeln!(out, "  the trace has no native stacks; record them with --stacks both")?;
    }
    if head.ring.is_some() {
        writeln!(
            out,
            "  the last events are in {}: keep both files together",
            escape_path(&ring_path(&target))
        )?;
    }
    for reason in &reasons {
        writeln!(out, "  incomplete, like the trace: {}", escape_text(reason))?;
    }
    print_text(&out)?;
    Ok(if reasons.is_empty() { CliExit::Done } else { CliExit::Incomplete })
}

/// The default output: `run.trace` becomes `run.symbolized.trace`.
fn default_output(trace: &Path) -> PathBuf {
    let name = trace.file_name().unwrap_or_default().to_string_lossy();
    trace.with_file_name(match name.strip_suffix(".trace") {
        Some(stem) => format!("{stem}.symbolized.trace"),
        None => format!("{name}.symbolized"),
    })
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// The losses of the trace, a sentence each. Reads all events.
fn incomplete_reasons(file: &TraceSource, head: &TraceHead) -> Result<Vec<String>, UnreadableInput> {
    let (body, threads) = survey_events(&|| file.open(), head, &mut |_| {})
        .map_err(|error| UnreadableInput(format!("{} {error}", file.name)))?;
    Ok(find_losses(head, &body, threads).1.iter().map(describe_loss).collect())
}

/// The names of all native addresses of a trace, by build ID.
struct NamedAddresses {
    modules: BTreeMap<Vec<u8>, Vec<AddressNames>>,
    all: u64,
    /// How many of `all` have a name.
    found: u64,
    reasons: BTreeMap<(UnnamedReason, Option<String>), u64>,
}

impl NamedAddresses {
    fn resolve(definitions: &Definitions, resolver: &mut Resolver) -> Self {
        let addresses: BTreeSet<u64> = definitions.native.values().map(|node| node.return_address).collect();
        let mut named = Self {
            modules: BTreeMap::new(),
            all: addresses.len() as u64,
            found: 0,
            reasons: BTreeMap::new(),
        };
        for return_address in addresses {
            let call = return_address.saturating_sub(1);
            let module = definitions.module_at(call);
            match (symbolize_address(definitions, return_address, resolver), module) {
                (Ok(frames), Some(module)) => {
                    named.found += 1;
                    let names = AddressNames { address: call.wrapping_sub(module.load_bias), frames };
                    named.modules.entry(module.build_id.clone()).or_default().push(names);
                }
                (result, module) => {
                    let why = result.err().unwrap_or(UnnamedReason::NoModule);
                    *named.reasons.entry((why, module.map(|module| module.path.clone()))).or_default() += 1;
                }
            }
        }
        named
    }

    /// Encodes the names as NAMES blocks.
    fn encode_blocks(&self) -> Vec<Vec<u8>> {
        let mut blocks = Vec::new();
        for (build_id, addresses) in &self.modules {
            for addresses in addresses.chunks(BLOCK_ADDRESSES) {
                encode_name_blocks(&mut blocks, build_id, addresses);
            }
        }
        blocks
    }
}

fn encode_name_blocks(blocks: &mut Vec<Vec<u8>>, build_id: &[u8], addresses: &[AddressNames]) {
    let module = ModuleNames { build_id: build_id.to_vec(), addresses: addresses.to_vec() };
    let payload = encode_names(&[module]);
    if payload.len() <= MAX_PAYLOAD_BYTES {
        blocks.push(encode_block(BlockKind::NAMES, &payload, LEVEL));
    } else if addresses.len() > 1 {
        let (one, other) = addresses.split_at(addresses.len() / 2);
        encode_name_blocks(blocks, build_id, one);
        encode_name_blocks(blocks, build_id, other);
    }
}

/// Writes the copy: the new names, then the trace without the blocks that they replace.
fn write_copy(file: &TraceSource, named: &NamedAddresses, target: OutputPath) -> anyhow::Result<()> {
    let old = replaced_spans(file)?;
    let is_stream =
        UsageError(format!("{} is a device or a pipe; name a file with -o", target.path().display()));
    let mut output = target.begin()?;
    let copy = output.sparse_file()?.ok_or(is_stream)?;
    let mut source = file.open()?;
    let mut header = [0; FILE_HEADER_BYTES];
    source.read_exact(&mut header)?;
    copy.write_all(&header)?;
    for block in named.encode_blocks() {
        copy.write_all(&block)?;
    }
    let has_parts = file.parts.files.len() > 1;
    let mut at = FILE_HEADER_BYTES as u64;
    for names in old {
        copy_bytes(&mut source, names.start - at, copy)?;
        std::io::copy(&mut source.by_ref().take(names.end - names.start), &mut std::io::sink())?;
        at = names.end;
    }
    copy_bytes(&mut source, u64::MAX, copy)?;
    if has_parts {
        let mut one_file = Meta::default();
        one_file.set_number("part", 0);
        copy.write_all(&encode_block(BlockKind::META, &one_file.encode(), LEVEL))?;
    }
    copy.sync_all()?;
    output.finish()?;
    Ok(())
}

/// Copies at most `bytes`, with the holes of a sparse file as holes.
fn copy_bytes(source: &mut dyn TraceBytes, mut bytes: u64, copy: &mut File) -> std::io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    while bytes > 0 {
        let hole = source.skip_hole();
        if hole > 0 {
            let end = copy.seek(SeekFrom::Current(hole as i64))?;
            copy.set_len(end)?;
        }
        bytes -= hole.min(bytes);
        let most = buffer.len().min(bytes as usize);
        let read = source.read(&mut buffer[..most])?;
        if read == 0 {
            break;
        }
        copy.write_all(&buffer[..read])?;
        bytes -= read as u64;
    }
    Ok(())
}

/// The bytes to leave out of the copy: old NAMES blocks, and the index of each part. Readers would
/// take the latter for the index of the whole trace.
fn replaced_spans(file: &TraceSource) -> Result<Vec<Range<u64>>, UnreadableInput> {
    let refuse = |error: &dyn std::fmt::Display| UnreadableInput(format!("{} {error}", file.name));
    let source = file.open().map_err(|error| refuse(&error))?;
    let mut reader =
        TraceReader::new(source).map_err(|error| refuse(&error))?.passing_holes().without_events();
    let has_parts = file.parts.files.len() > 1;
    let mut found = Vec::new();
    loop {
        let start = reader.offset();
        match reader.next() {
            None => return Ok(found),
            Some(Item::Names(_)) => found.push(start..reader.offset()),
            Some(Item::Index(_) | Item::Tail(_)) if has_parts => found.push(start..reader.offset()),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_output_inserts_symbolized_before_extension() {
        for (trace, copy) in [
            ("/a/run.trace", "/a/run.symbolized.trace"),
            ("run.rank3.trace", "run.rank3.symbolized.trace"),
            ("/a/other", "/a/other.symbolized"),
        ] {
            assert_eq!(default_output(Path::new(trace)), Path::new(copy));
        }
    }
}
