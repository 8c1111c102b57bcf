//! The metadata of a trace that was made of a snapshot.

use gpumemtrace_format::Meta;
use gpumemtrace_format::block::BlockKind;

use super::device_events::SizeChecks;
use super::trace_writer::TraceWriter;
use crate::history::{HistoryFacts, TorchDeviceHistory};
use crate::values::TorchSnapshot;

/// Earlier times are not of the wall clock: 2000-01-01.
const FIRST_WALL_CLOCK_US: u64 = 946_684_800_000_000;

/// When the events were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HistoryTimes {
    /// Time of the first event; 0 if there is none or events have no times.
    pub(super) first_ns: u64,
}

impl HistoryTimes {
    pub(super) fn of(snapshot: &TorchSnapshot, devices: &[TorchDeviceHistory]) -> Self {
        let firsts = devices.iter().filter_map(|device| {
            device.runs.iter().flat_map(|run| snapshot.events.iter(*run)).find_map(|event| event.time_us)
        });
        Self { first_ns: firsts.min().unwrap_or(0).saturating_mul(1000) }
    }
}

/// Adds what is known before the events.
pub(super) fn add_metadata(
    writer: &mut TraceWriter,
    snapshot: &TorchSnapshot,
    facts: HistoryFacts,
    times: HistoryTimes,
) {
    let mut meta = Meta::default();
    meta.set_list("mode", vec!["snapshot".to_owned()]);
    meta.set_number("started_ns", times.first_ns);
    if times.first_ns / 1000 >= FIRST_WALL_CLOCK_US {
        meta.set_number("started_unix_ns", times.first_ns);
    }
    if let Some(conf) = &snapshot.settings.conf {
        meta.set_text("allocator_conf", conf.as_str());
    }
    if let Some(accelerator) = facts.accelerator {
        meta.set_text("snapshot.accelerator", accelerator.name());
    }
    meta.set_number("snapshot.events", facts.events);
    meta.set_number("snapshot.start_blocks", facts.start_blocks);
    meta.set_number("snapshot.start_bytes", facts.start_bytes);
    meta.set_number("snapshot.overwritten", u64::from(facts.is_overwritten));
    if let Some((oldest, newest)) = snapshot.releases {
        meta.set_number("snapshot.oldest_minor", u64::from(oldest));
        meta.set_number("snapshot.newest_minor", u64::from(newest));
    }
    let counts = &snapshot.counts;
    let counted = [
        ("snapshot.max_entries", snapshot.settings.max_entries.unwrap_or(0)),
        ("snapshot.padding_bytes", facts.padding_bytes),
        ("snapshot.without_segments", u64::from(!snapshot.has_segments)),
        ("snapshot.contradictions", facts.contradictions),
        ("snapshot.unknown_events", counts.unknown_events),
        ("snapshot.unknown_keys", counts.unknown_keys),
        ("snapshot.strange_entries", counts.strange_entries),
        ("snapshot.host_events", counts.host_events),
        ("snapshot.dropped_texts", counts.dropped_texts),
    ];
    add_counts(&mut meta, &counted);
    writer.add_block(BlockKind::META, &meta.encode());
}

/// Adds how many sizes of blocks could be checked, and how many were computed wrong.
pub(super) fn add_size_checks(writer: &mut TraceWriter, sizes: SizeChecks) {
    let mut meta = Meta::default();
    add_counts(&mut meta, &[("snapshot.checked_sizes", sizes.blocks), ("snapshot.wrong_sizes", sizes.wrong)]);
    if !meta.entries().is_empty() {
        writer.add_block(BlockKind::META, &meta.encode());
    }
}

fn add_counts(meta: &mut Meta, counts: &[(&str, u64)]) {
    for (name, number) in counts.iter().filter(|(_, number)| *number > 0) {
        meta.set_number(name, *number);
    }
}
