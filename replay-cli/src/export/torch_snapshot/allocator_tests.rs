//! Whatever the events are, the entries describe a sequence of valid states.

use gpumemtrace_format::{Detail, ThreadId};
use gpumemtrace_replay::RunHistory;
use proptest::prelude::*;

use super::*;

/// The state that entries lead to, as a viewer derives it.
#[derive(Default)]
struct ViewedState {
    blocks: BTreeMap<u64, (u64, bool)>,
    /// Addresses that segments contain.
    mapped: BTreeSet<u64>,
}

impl ViewedState {
    /// Applies an entry, and checks that it is possible. `sizes` are those of the blocks.
    fn apply(&mut self, entry: &SnapshotEntry, bytes: u64) {
        let (begin, end) = (entry.addr, entry.addr + bytes);
        match entry.action {
            SnapshotAction::Alloc => {
                for (addr, (size, _)) in &self.blocks {
                    assert!(*addr >= end || addr + size <= begin, "blocks overlap at {entry:?}");
                }
                assert!((begin..end).all(|addr| self.mapped.contains(&addr)), "no segment for {entry:?}");
                self.blocks.insert(begin, (bytes, false));
            }
            SnapshotAction::FreeRequested => {
                let block = self.blocks.get_mut(&begin).expect("a block is freed that is not live");
                assert!(!std::mem::replace(&mut block.1, true), "a block is freed twice");
            }
            SnapshotAction::FreeCompleted => {
                assert!(self.blocks.remove(&begin).is_some_and(|(_, is_pending)| is_pending));
            }
            SnapshotAction::SegmentAlloc | SnapshotAction::SegmentMap => {
                assert!((begin..end).all(|addr| self.mapped.insert(addr)), "segments overlap");
            }
            SnapshotAction::SegmentFree | SnapshotAction::SegmentUnmap => {
                assert!((begin..end).all(|addr| self.mapped.remove(&addr)), "no segment to free");
            }
            SnapshotAction::Snapshot | SnapshotAction::OutOfMemory | SnapshotAction::UserDefined => {}
        }
    }

    /// Every block lies in segments. While a segment is replaced it may not.
    fn check(&self) {
        for (addr, (bytes, _)) in &self.blocks {
            assert!((*addr..addr + bytes).all(|at| self.mapped.contains(&at)), "a block without a segment");
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Event(EventKind, u64, u64, bool, bool),
    Driver(bool, u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use EventKind as Kind;
    let kinds = [
        (8, Kind::BLOCK_ALLOC),
        (6, Kind::BLOCK_FREE),
        (3, Kind::BLOCK_FREE_COMPLETED),
        (2, Kind::SEGMENT_ALLOC),
        (1, Kind::SEGMENT_FREE),
        (2, Kind::SEGMENT_MAP),
        (1, Kind::SEGMENT_UNMAP),
        (1, Kind::MAP),
        (1, Kind::UNMAP),
        (1, Kind::BLOCK_OOM),
    ];
    let kind = proptest::strategy::Union::new_weighted(
        kinds.into_iter().map(|(weight, kind)| (weight, Just(kind))).collect(),
    );
    let place = (0u64..24, 1u64..9);
    let event = (kind, place.clone(), any::<bool>(), any::<bool>())
        .prop_map(|(kind, (addr, size), detail, now)| Step::Event(kind, addr * 4, size * 4, detail, now));
    let driver = (any::<bool>(), place)
        .prop_map(|(is_alloc, (addr, size))| Step::Driver(is_alloc, addr * 4, size * 8));
    proptest::collection::vec(prop_oneof![5 => event, 1 => driver], 0..80)
}

fn driver_block(addr: u64, bytes: u64) -> WalkedBlock {
    WalkedBlock {
        layer: BlockLayer::Driver,
        device: 0,
        addr,
        size_bytes: bytes,
        requested_bytes: None,
        stream: None,
        pool: None,
        stack: 1,
        site: 0,
        time_ns: 0,
        step: 0,
        seq: 0,
        thread: ThreadId(0),
    }
}

proptest! {
    #[test]
    fn entries_are_a_sequence_of_valid_states(steps in steps(), has_torch in any::<bool>()) {
        let devices = has_torch.then_some(0).into_iter().collect();
        let mut model = AllocatorModel::new(devices, MomentLabels::new(&RunHistory::default()));
        let mut viewed = ViewedState::default();
        let mut live_ranges = BTreeMap::new();
        for (time_ns, step) in (0..).zip(steps) {
            let mut changes = Vec::new();
            let event = match step {
                Step::Event(kind, addr, size, has_detail, is_immediate) => Event {
                    device: 0,
                    addr,
                    size,
                    detail: has_detail.then_some(Detail { requested_bytes: size - 1, stream: 0, pool: 0 }),
                    flags: u8::from(is_immediate),
                    ..Event::new(kind)
                },
                Step::Driver(is_alloc, addr, size) => {
                    let lost = live_ranges.remove(&addr);
                    if is_alloc {
                        changes.extend(lost.map(BlockChange::Lost));
                        changes.push(BlockChange::Allocated(driver_block(addr, size)));
                        live_ranges.insert(addr, driver_block(addr, size));
                    } else {
                        changes.extend(lost.map(BlockChange::Freed));
                    }
                    Event::new(EventKind::DEVICE_ALLOC)
                }
            };
            let walked =
                WalkedEvent { event: &event, time_ns, step: 0, stack: 2, site: 0, name: None, is_inside: true, changes: &changes };
            let before = model.blocks.clone();
            let entries = model.on_event(&walked).to_vec();
            for entry in &entries {
                let block = || before.get(&(0, entry.addr)).or_else(|| model.blocks.get(&(0, entry.addr)));
                // The entry has the requested size. An allocation takes the place of others.
                let bytes = match entry.action {
                    SnapshotAction::Alloc => model.blocks[&(0, entry.addr)].bytes,
                    SnapshotAction::FreeRequested | SnapshotAction::FreeCompleted => {
                        block().map_or(0, |block| block.bytes)
                    }
                    _ => entry.size,
                };
                viewed.apply(entry, bytes);
            }
            viewed.check();
            let blocks: BTreeMap<u64, (u64, bool)> =
                model.blocks.iter().map(|((_, addr), block)| (*addr, (block.bytes, block.is_pending))).collect();
            prop_assert_eq!(&viewed.blocks, &blocks);
            let segments = model.segments.of_device(0).flat_map(|segment| segment.addr..segment.addr + segment.bytes);
            prop_assert_eq!(&viewed.mapped, &segments.collect::<BTreeSet<u64>>());
        }
    }
}
