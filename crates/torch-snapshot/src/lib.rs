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

use std::io::{Read, Seek};

mod error;
mod history;
mod json;
mod json_strings;
mod output;
mod pickle;
mod source;
mod values;

pub use error::SnapshotError;
pub use source::{SNIFF_BYTES, looks_like_snapshot, unpack_start};
pub use values::BACKWARD_FRAME;

/// Reads a snapshot and returns the bytes of a trace with the same events.
///
/// The input is a pickle of protocol 2 to 5 or JSON. It may be compressed with gzip, xz or zstd, in
/// a zip archive, written by `torch.save`, or in a page of PyTorch's `_memory_viz`.
pub fn transcode(input: &mut (impl Read + Seek)) -> Result<Vec<u8>, SnapshotError> {
    let snapshot = source::with_plain_snapshot(input, read)?;
    Ok(output::encode(history::DeviceHistories::of(snapshot)))
}

fn read(mut plain: source::PlainSnapshot<'_>) -> Result<values::TorchSnapshot, SnapshotError> {
    let mut builder = values::SnapshotBuilder::default();
    let root = match plain.form {
        source::SnapshotForm::Pickle { skipped_pickles } => {
            pickle::read_pickle(&mut plain.bytes, &mut builder, skipped_pickles)
        }
        source::SnapshotForm::Json => json::read_json(&mut plain.bytes, &mut builder),
    };
    let root = match root {
        Err(SnapshotError::Code { .. }) if plain.is_torch_save => {
            let why = "torch.save wrote it, and it holds tensors or other objects, as a checkpoint does";
            return Err(SnapshotError::OtherContents(why));
        }
        root => root?,
    };
    let snapshot = builder.finish(root)?;
    if plain.is_packed {
        // Up to the end, where the checksum is.
        std::io::copy(&mut plain.bytes, &mut std::io::sink())?;
    }
    Ok(snapshot)
}
