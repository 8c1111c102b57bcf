//! Free blocks of one size class, in the order in which requests take them.
//!
//! Nearly all requests of a program are on a few streams. So each stream has a map of its own, and
//! its keys are single numbers.

use std::collections::BTreeMap;

use crate::ids::BlockId;

/// Bytes of a block in the upper half, the order among equal sizes in the lower one.
type FreeBlockKey = u128;

fn key_of(bytes: u64, order: u64) -> FreeBlockKey {
    u128::from(bytes) << 64 | u128::from(order)
}

/// The free blocks of one stream.
#[derive(Clone, Debug)]
struct StreamBlocks {
    stream: u64,
    blocks: BTreeMap<FreeBlockKey, BlockId>,
}

/// Free blocks by stream, size and order.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeBlocks {
    /// One row per stream, by ascending stream.
    streams: Vec<StreamBlocks>,
}

impl FreeBlocks {
    fn of_stream(&self, stream: u64) -> Option<&BTreeMap<FreeBlockKey, BlockId>> {
        let at = self.streams.binary_search_by_key(&stream, |row| row.stream).ok()?;
        Some(&self.streams[at].blocks)
    }

    pub(super) fn insert(&mut self, stream: u64, bytes: u64, order: u64, id: BlockId) {
        let at = match self.streams.binary_search_by_key(&stream, |row| row.stream) {
            Ok(at) => at,
            Err(_) => self.add_stream(stream),
        };
        self.streams[at].blocks.insert(key_of(bytes, order), id);
    }

    #[cold]
    fn add_stream(&mut self, stream: u64) -> usize {
        // Programs create and destroy streams; empty maps must not pile up.
        self.streams.retain(|row| !row.blocks.is_empty());
        let at = self.streams.partition_point(|row| row.stream < stream);
        self.streams.insert(at, StreamBlocks { stream, blocks: BTreeMap::new() });
        at
    }

    /// Removes a block. False if it is not there.
    pub(super) fn remove(&mut self, stream: u64, bytes: u64, order: u64) -> bool {
        let at = self.streams.binary_search_by_key(&stream, |row| row.stream);
        at.is_ok_and(|at| self.streams[at].blocks.remove(&key_of(bytes, order)).is_some())
    }

    /// The first block of a stream with at least `bytes`.
    pub(super) fn best_fit(&self, stream: u64, bytes: u64) -> Option<BlockId> {
        self.of_stream(stream)?.range(key_of(bytes, 0)..).next().map(|(_, id)| *id)
    }

    /// Blocks of a stream with at least `bytes`, in order.
    pub(super) fn at_least(&self, stream: u64, bytes: u64) -> impl Iterator<Item = BlockId> + '_ {
        let blocks = self.of_stream(stream).map(|blocks| blocks.range(key_of(bytes, 0)..));
        blocks.unwrap_or_default().map(|(_, id)| *id)
    }

    /// Blocks of a stream with fewer than `bytes`, in reverse order.
    pub(super) fn below(&self, stream: u64, bytes: u64) -> impl Iterator<Item = BlockId> + '_ {
        let blocks = self.of_stream(stream).map(|blocks| blocks.range(..key_of(bytes, 0)));
        blocks.unwrap_or_default().rev().map(|(_, id)| *id)
    }

    /// All blocks, by stream and in order.
    pub(super) fn all(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.streams.iter().flat_map(|row| row.blocks.values().copied())
    }
}
