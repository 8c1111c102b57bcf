//! Valid trace files with hostile numbers: every analysis must end without a panic, and give the
//! same report each time.

use gpumemtrace_format::ring::RingImage;
use gpumemtrace_format::{
    ApiId, CodeDef, CodeId, Detail, Event, EventKind, FrameLink, NO_SEQ, NodeId, PyNode, ThreadId,
};
use gpumemtrace_replay::compare::{Profile, compare};
use gpumemtrace_replay::{
    AnalysisOptions, RingFile, Section, SiteFilter, StreamId, TimeSpec, keep_sites, report, truncate_lists,
};
use gpumemtrace_synthetic::{
    Synthetic, analyse_by_steps, analyse_bytes, analyse_for_peak, analyse_part, ring_file,
};
use proptest::prelude::*;

/// Small numbers, which often collide, and numbers close to overflow.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..8,
        (0u64..64).prop_map(|n| n * 512),
        Just(u64::MAX),
        Just(u64::MAX - 511),
        Just(1 << 63),
        any::<u64>()
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![
        Just(64u8),
        Just(65),
        Just(64),
        Just(65),
        Just(66),
        Just(1),
        Just(2),
        Just(4),
        Just(5),
        Just(8),
        Just(9),
        Just(12),
        Just(13),
        Just(14),
        Just(15),
        64u8..75,
        Just(96),
        any::<u8>()
    ];
    let numbers = (number(), number(), number(), [number(), number()]);
    let device = prop_oneof![Just(0u8), Just(0), Just(1), Just(255)];
    (kind, numbers, device, 0u32..6, 0u32..6, 0u16..2, any::<bool>(), 0u64..200).prop_map(
        |(kind, (time_ns, addr, size, aux), device, python, native, result, in_flight, seq)| Event {
            seq: if seq == 0 { NO_SEQ } else { seq },
            time_ns,
            thread: ThreadId(python),
            kind: EventKind(kind),
            device,
            api: ApiId(kind),
            flags: 0,
            result,
            in_flight: in_flight && result == 1,
            addr,
            size,
            aux,
            python_stack: NodeId(python),
            native_stack: NodeId(native / 4),
            detail: (seq % 2 == 0).then_some(Detail {
                requested_bytes: aux[0],
                stream: u64::from(native),
                pool: aux[1],
            }),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_events_are_analysed_without_panic_and_reproducibly(
        events in proptest::collection::vec(event(), 0..200),
        dense in any::<bool>(),
        started in proptest::option::of(number()),
        total in proptest::option::of(number()),
        nodes in proptest::collection::vec((0u32..6, 0u32..6, any::<i32>()), 0..6),
        table in proptest::collection::vec(any::<u8>(), 0..30),
        in_ring in any::<prop::sample::Index>(),
    ) {
        let mut run = Synthetic::new();
        run.events = events;
        if dense {
            run.events.iter_mut().zip(0..).for_each(|(event, seq)| event.seq = seq);
        }
        run.nodes = nodes.iter().zip(1..).map(|((parent, code, offset), id)| {
            PyNode { id: NodeId(id), parent: NodeId(*parent), code: CodeId(*code), offset_bytes: *offset, link: FrameLink::Unknown }
        }).collect();
        let files = ["a.py", "/x/torch/optim/adam.py", "<string>", "", "/lib/python3.11/a.py"];
        run.codes = files.iter().zip(1..).map(|(file, id)| CodeDef {
            id: CodeId(id), first_line: i32::MAX, python: 0x030b, truncated: true, file: (*file).into(), name: "step".into(),
            line_table: table.clone(),
        }).collect();
        if let Some(started) = started {
            run.meta.set_number("started_ns", started);
        }
        if let Some(total) = total {
            run.meta.set_number("device.0.total_bytes", total);
        }
        let split = in_ring.index(run.events.len() + 1);
        let file = run.file_of(&run.events[..split], 50);
        let ring = RingImage::decode(&ring_file(&run.events[split..], 300)).unwrap();
        let again = analyse_bytes(&file, RingFile::Loaded(Box::new(ring.clone())));
        let analysis = analyse_bytes(&file, RingFile::Loaded(Box::new(ring)));
        let again = serde_json::to_string(&report(&[again], &[])).unwrap();
        let report = report(&[analysis], &[]);
        for moment in report.fragmentation.iter().flatten() {
            prop_assert_eq!(moment.causes.iter().map(|cause| u128::from(cause.bytes)).sum::<u128>(), u128::from(moment.gap_bytes));
        }
        // Together with another trace, and with the list of peak blocks.
        let other = Synthetic::train(6, |_, _, _| {});
        let _ = gpumemtrace_replay::report(&[analyse_bytes(&file, RingFile::Absent), other.analyse()], &[]);
        let twice = [analyse_for_peak(&file)];
        let mut with_blocks = gpumemtrace_replay::report(&twice, &[Section::Peak]);
        gpumemtrace_replay::add_peak_blocks(&mut with_blocks, &twice);
        for (since, stream) in [(Some(TimeSpec::Step(1)), None), (Some(TimeSpec::Elapsed { time_ns: 1 }), Some(StreamId(0)))] {
            let asked = AnalysisOptions { since, stream, ..AnalysisOptions::default() };
            let mut report = gpumemtrace_replay::report(&[analyse_part(&file, asked)], &[]);
            keep_sites(&mut report, &SiteFilter::from("*.py:1"));
            truncate_lists(&mut report, 1);
        }
        let history = || {
            let options = AnalysisOptions { keeps_history: true, ..AnalysisOptions::default() };
            analyse_part(&file, options).take_history().map(|history| format!("{history:?}"))
        };
        prop_assert_eq!(history(), history());
        let (first, amounts) = analyse_by_steps(&file).unwrap();
        let profile = Profile::new(&first, &amounts);
        prop_assert!(!compare(&profile, &profile).differs);
        let (other, amounts) = analyse_by_steps(&other.file(50)).unwrap();
        let other = Profile::new(&other, &amounts);
        prop_assert_eq!(compare(&profile, &other).differs, compare(&other, &profile).differs);
        // Hash maps have another order in each analysis.
        prop_assert_eq!(serde_json::to_string(&report).unwrap(), again);
    }
}
