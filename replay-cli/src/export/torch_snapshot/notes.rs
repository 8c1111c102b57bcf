//! What a snapshot does not show as it was, in sentences.

use super::allocator::Inexactness;
use crate::export::ExportRun;
use crate::terminal::units::format_bytes;

/// The notes of a snapshot: `entries` of the window, of which the first `skipped` are left out, and
/// bytes of the driver's memory outside PyTorch's segments.
pub(super) fn notes_of(
    inexact: &Inexactness,
    run: &ExportRun,
    (entries, skipped): (u64, u64),
    driver_bytes_outside: u64,
) -> Vec<String> {
    let mut notes = vec![(
        skipped,
        format!("the first {skipped} of {entries} entries are left out; --max-events sets another limit"),
    )];
    notes.extend(notes_on_blocks(inexact));
    let without_torch = run.history.devices.iter().filter(|device| !device.has_torch);
    notes.extend(without_torch.map(|device| {
        let ordinal = device.ordinal;
        let note = format!(
            "GPU {ordinal} has no blocks of PyTorch's allocator; each allocation of the driver is a segment with \
             one block"
        );
        (1, note)
    }));
    let outside = format_bytes(driver_bytes_outside);
    let turns = run.history.omitted_phase_turns;
    notes.push((
        driver_bytes_outside,
        format!("{outside} of driver memory outside PyTorch's allocator are left out"),
    ));
    notes.push((turns, format!("{turns} turns of phases are left out")));
    notes.into_iter().filter(|(count, _)| *count > 0).map(|(_, note)| note).collect()
}

/// What is unknown about blocks and segments. A count of 0 needs no note.
fn notes_on_blocks(inexact: &Inexactness) -> [(u64, String); 7] {
    let Inexactness { unknown_frees, lost_frees, unrequested_blocks, .. } = *inexact;
    let Inexactness { driver_segments, homeless_blocks, handles, unknown_devices, .. } = *inexact;
    [
        (
            unknown_frees,
            format!("{unknown_frees} frees are left out; their blocks were allocated before the recording"),
        ),
        (
            lost_frees,
            format!("the free of {lost_frees} blocks is missing; they end where their memory is used again"),
        ),
        (
            unrequested_blocks,
            format!(
                "the requested size of {unrequested_blocks} blocks is unknown; their rounded size is written"
            ),
        ),
        (
            driver_segments,
            format!(
                "{driver_segments} segments are allocations of the driver, since PyTorch's tracker did not \
                 report them; stream 0 stands for their unknown stream"
            ),
        ),
        (
            homeless_blocks,
            format!("{homeless_blocks} blocks lie outside all known memory; each has a segment of its own"),
        ),
        (handles, format!("{handles} allocations have no address; they are at 0x4000000000000 and above")),
        (unknown_devices, format!("{unknown_devices} allocations are left out; their device is unknown")),
    ]
}
