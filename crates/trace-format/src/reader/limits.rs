//! What a reader unpacks, and how much of it.

use crate::block::{BlockHeader, BlockKind};

/// Which blocks are unpacked; of the others only the header is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockFilter {
    All,
    EventsOnly,
    AllButEvents,
}

impl BlockFilter {
    pub(super) fn includes(self, kind: BlockKind) -> bool {
        match self {
            Self::All => true,
            Self::EventsOnly => kind.is_events(),
            Self::AllButEvents => !kind.is_events(),
        }
    }
}

/// Counts unpacked bytes, so that a small hostile file cannot unpack to more memory than there is.
#[derive(Debug, Default)]
pub(super) struct UnpackBudget {
    definition_bytes: u64,
    event_bytes: u64,
    events: u64,
}

impl UnpackBudget {
    /// Adds a block that ends at this offset in the file; an error if that exceeds the limit.
    pub(super) fn charge(&mut self, header: &BlockHeader, end: u64) -> Result<(), String> {
        let (bytes, max_bytes, what) = match header.kind {
            kind if kind.is_events() => (&mut self.event_bytes, max_event_bytes(end), "events"),
            kind if kind.is_definitions() => {
                (&mut self.definition_bytes, max_definition_bytes(end), "definitions")
            }
            _ => return Ok(()),
        };
        if *bytes + header.raw_len() as u64 > max_bytes {
            return Err(format!("the payload unpacks to more {what} than a file of this size can need"));
        }
        *bytes += header.raw_len() as u64;
        Ok(())
    }

    /// Adds the events of a block that ends at this offset in the file; an error if that exceeds
    /// the limit.
    pub(super) fn charge_events(&mut self, events: u64, end: u64) -> Result<(), String> {
        let sum = self.events.saturating_add(events);
        if sum > max_events(end) {
            return Err("the block has more events than a file of this size can need".to_owned());
        }
        self.events = sum;
        Ok(())
    }
}

/// Events that a file may hold up to an offset. In the densest loop, in which only times differ,
/// ten events take about a byte. An event may be a live block, which takes some 200 bytes of
/// memory.
pub(super) const fn max_events(read_bytes: u64) -> u64 {
    (1 << 20) + read_bytes.saturating_mul(16)
}

/// Bytes of events, unpacked, that a file may hold up to an offset. The densest loop, in which only
/// times differ, packs to a tenth. Without a limit, one megabyte could claim a billion live blocks.
pub(super) const fn max_event_bytes(read_bytes: u64) -> u64 {
    (64 << 20) + read_bytes.saturating_mul(256)
}

/// Bytes of definitions, unpacked, that a file may hold up to an offset. Real definitions pack to
/// about a tenth. Without a limit, 100 KB of zeros would unpack to gigabytes.
pub(super) const fn max_definition_bytes(read_bytes: u64) -> u64 {
    (16 << 20) + read_bytes.saturating_mul(32)
}
