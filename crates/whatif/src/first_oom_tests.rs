//! When there is a verdict on a setting, and which.

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_format::event::{Detail, FLAG_FREED_AT_ONCE, SAMPLE_SOURCE_PROGRAM, SAMPLE_SOURCE_RECORDER};
use gpumemtrace_format::{Event, NodeId};
use gpumemtrace_replay::report::BlockChange;

use super::*;
use crate::requests::OUT_OF_MEMORY;
use crate::tests::run::driver_change;

const MIB: u64 = 1 << 20;
const SETTINGS: [&str; 3] =
    ["expandable_segments:True", "max_split_size_mb:512", "roundup_power2_divisions:8"];
/// The line that requests the block which fails.
const LAST_LINE: NodeId = NodeId(9);

/// A run whose small blocks take a part of a large free one, which is then too small for the next
/// large request.
struct PinnedRun {
    events: Vec<Event>,
    oom: FirstOom,
}

impl PinnedRun {
    /// `free_bytes` of the card are free at the error, and PyTorch has reserved 600 MiB.
    fn new(free_bytes: u64) -> Self {
        let reserved_bytes = 600 * MIB;
        let mut events = vec![
            Event { addr: 0x4000_0000, size: reserved_bytes, ..Event::new(EventKind::DEVICE_ALLOC) },
            block(EventKind::BLOCK_ALLOC, 0x4000_0000, reserved_bytes),
            block(EventKind::BLOCK_FREE, 0x4000_0000, reserved_bytes),
        ];
        let kept = (0..11).map(|number| block(EventKind::BLOCK_ALLOC, 0x4000_0000 + number, 18 * MIB));
        events.extend(kept);
        events.push(Event {
            result: OUT_OF_MEMORY,
            size: reserved_bytes,
            python_stack: LAST_LINE,
            ..Event::new(EventKind::DEVICE_ALLOC)
        });
        events.push(Event { python_stack: LAST_LINE, ..block(EventKind::BLOCK_OOM, free_bytes, 600 * MIB) });
        let oom = FirstOom {
            seq: events.len() as u64 - 1,
            device: 0,
            reserved_bytes,
            free_bytes,
            driver_bytes: reserved_bytes,
            card_bytes: 2048 * MIB,
        };
        Self { events, oom }
    }

    /// Adds an event before the one with this index.
    fn insert(&mut self, at: usize, event: Event) {
        self.events.insert(at, event);
        self.oom.seq += 1;
    }

    fn verdicts(&self) -> [Option<bool>; 3] {
        let scenario =
            |text| Scenario::new(text, TorchVersion::LATEST, Some(self.oom.card_bytes)).expect("a setting");
        let others = SETTINGS.map(scenario).to_vec();
        let mut predictor = OomPredictor::new(self.oom, &scenario(""), others);
        for (seq, event) in self.events.iter().enumerate() {
            let event = Event { seq: seq as u64, ..*event };
            let changes = driver_change(&event);
            if predictor.on_event(&walked(&event, changes.as_slice())).is_break() {
                break;
            }
        }
        let verdicts: Vec<_> = predictor.finish().iter().map(|verdict| verdict.works).collect();
        verdicts.try_into().expect("one for each setting")
    }
}

fn block(kind: EventKind, addr: u64, size: u64) -> Event {
    Event {
        device: 0,
        addr,
        size,
        aux: [0, 600 * MIB],
        flags: FLAG_FREED_AT_ONCE,
        detail: Some(Detail { requested_bytes: size, stream: 0, pool: 0 }),
        ..Event::new(kind)
    }
}

/// A sample of this many free bytes of the card.
fn sample(free_bytes: u64, source: u64) -> Event {
    let total_bytes = 1024 * MIB;
    Event {
        device: 0,
        size: total_bytes - free_bytes,
        aux: [total_bytes, source],
        ..Event::new(EventKind::MEMORY_SAMPLE)
    }
}

fn walked<'a>(event: &'a Event, changes: &'a [BlockChange]) -> WalkedEvent<'a> {
    WalkedEvent { event, time_ns: 0, step: 0, stack: 0, site: 0, name: None, is_inside: true, changes }
}

const UNKNOWN: [Option<bool>; 3] = [None; 3];

#[test]
fn settings_work_or_fail_as_far_as_the_card_suffices() {
    // 11 blocks of 18 MiB and one of 600 MiB: 798 MiB, or 800 MiB in pages of 20 MiB.
    assert_eq!(PinnedRun::new(424 * MIB).verdicts(), [Some(true), Some(true), Some(false)]);
    assert_eq!(PinnedRun::new(200 * MIB).verdicts(), [Some(true), Some(true), Some(false)]);
    assert_eq!(PinnedRun::new(198 * MIB).verdicts()[1..], [Some(true), Some(false)]);
    assert_eq!(PinnedRun::new(190 * MIB).verdicts(), [Some(false); 3]);
}

#[test]
fn run_that_the_model_does_not_reproduce_has_no_verdicts() {
    let mut other_bytes = PinnedRun::new(424 * MIB);
    other_bytes.events[5].aux[1] += 20 * MIB;
    assert_eq!(other_bytes.verdicts(), UNKNOWN);
    // The card had room for the request.
    assert_eq!(PinnedRun::new(601 * MIB).verdicts(), UNKNOWN);
    let mut without_detail = PinnedRun::new(424 * MIB);
    without_detail.events[5].detail = None;
    assert_eq!(without_detail.verdicts(), UNKNOWN);
    let mut unknown_free = PinnedRun::new(424 * MIB);
    unknown_free.insert(5, block(EventKind::BLOCK_FREE, 0x77, 512));
    assert_eq!(unknown_free.verdicts(), UNKNOWN);
    let mut private_pool = PinnedRun::new(424 * MIB);
    private_pool.events[5].detail = Some(Detail { requested_bytes: 18 * MIB, stream: 0, pool: 1 });
    assert_eq!(private_pool.verdicts(), UNKNOWN);
}

#[test]
fn program_that_reacted_to_memory_has_no_verdicts() {
    let mut asked = PinnedRun::new(424 * MIB);
    asked.insert(5, sample(424 * MIB, SAMPLE_SOURCE_PROGRAM));
    assert_eq!(asked.verdicts(), UNKNOWN);
    let mut failed_before = PinnedRun::new(424 * MIB);
    failed_before.insert(5, Event { device: 1, ..block(EventKind::BLOCK_OOM, 0, 512) });
    assert_eq!(failed_before.verdicts(), UNKNOWN);
    let mut refused_elsewhere = PinnedRun::new(424 * MIB);
    refused_elsewhere.insert(5, Event { result: OUT_OF_MEMORY, ..Event::new(EventKind::DEVICE_ALLOC) });
    refused_elsewhere.events[6].python_stack = NodeId(3);
    assert_eq!(refused_elsewhere.verdicts(), UNKNOWN);
    // PyTorch's own query during the request that fails is no reaction.
    let mut asked_by_pytorch = PinnedRun::new(424 * MIB);
    let at = asked_by_pytorch.events.len() - 1;
    let query = Event { python_stack: LAST_LINE, ..sample(424 * MIB, SAMPLE_SOURCE_PROGRAM) };
    asked_by_pytorch.insert(at, query);
    assert_eq!(asked_by_pytorch.verdicts(), [Some(true), Some(true), Some(false)]);
}

#[test]
fn request_that_pytorch_refuses_itself_has_no_verdicts() {
    let mut limited = PinnedRun::new(424 * MIB);
    let at = limited.events.len() - 2;
    limited.events.remove(at);
    limited.oom.seq -= 1;
    assert_eq!(limited.verdicts(), UNKNOWN);
}

#[test]
fn less_free_memory_before_the_error_leaves_larger_peaks_unknown() {
    let mut taken_before = PinnedRun::new(424 * MIB);
    taken_before.insert(5, sample(150 * MIB, SAMPLE_SOURCE_RECORDER));
    assert_eq!(taken_before.verdicts(), [None, None, Some(false)], "750 MiB may have been all there was");
    let mut more_before = PinnedRun::new(424 * MIB);
    more_before.insert(5, sample(424 * MIB + 1, SAMPLE_SOURCE_RECORDER));
    assert_eq!(more_before.verdicts(), [Some(true), Some(true), Some(false)]);
    // Memory that a library had before the error, and gave back.
    let mut library = PinnedRun::new(424 * MIB);
    let alloc = Event { addr: 0x99, size: 300 * MIB, ..Event::new(EventKind::DEVICE_ALLOC) };
    library.insert(5, alloc);
    assert_eq!(library.verdicts(), [None, None, Some(false)]);
    library.oom.driver_bytes += 300 * MIB;
    assert_eq!(library.verdicts(), [Some(true), Some(true), Some(false)], "it has it at the error, too");
}
