//! Reads memory snapshots of PyTorch, and encodes them as traces.
//!
//! `torch.cuda.memory._dump_snapshot()` pickles a dictionary: the allocator's segments and blocks
//! at that moment (`segments`), and for each GPU the last events of the allocator
//! (`device_traces`). `transcode` turns such a file into the bytes of a trace, so that every
//! analysis of traces works on it. `docs/analyses/snapshots.md` says what a snapshot lacks.
//!
//! Files may be hostile. Nothing in them is executed: the unpickler knows numbers, texts, lists,
//! tuples and dictionaries, and refuses every other opcode by name. No count in a file is trusted,
//! and memory grows with the events and the distinct stacks, at a few bytes each.
//!
//! Reading order: `source` (bytes, unpacked), `pickle` and `json` (both feed
//! `values::SnapshotBuilder`), `history` (the state before the first event, and sizes of
//! blocks), `output` (the trace).
#![forbid(unsafe_code)]

use std::io::Read;

mod error;
mod history;
mod json;
mod json_strings;
mod output;
mod pickle;
mod source;
mod values;

pub use error::SnapshotError;
pub use source::{SNIFF_BYTES, looks_like_snapshot};
pub use values::BACKWARD_FRAME;

/// Reads a snapshot and returns the bytes of a trace with the same events.
///
/// The input is a pickle of protocol 2 to 5 or JSON, plain or compressed with gzip.
pub fn transcode(input: &mut dyn Read) -> Result<Vec<u8>, SnapshotError> {
    let snapshot = read(input)?;
    Ok(output::encode(history::DeviceHistories::of(snapshot)))
}

fn read(input: &mut dyn Read) -> Result<values::TorchSnapshot, SnapshotError> {
    let mut plain = source::unpack(input)?;
    let mut builder = values::SnapshotBuilder::default();
    let root = match plain.form {
        source::SnapshotForm::Pickle => pickle::read_pickle(&mut plain.bytes, &mut builder)?,
        source::SnapshotForm::Json => json::read_json(&mut plain.bytes, &mut builder)?,
    };
    builder.finish(root)
}
