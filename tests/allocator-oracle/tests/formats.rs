//! The two text formats, the generator, and that the comparison finds every difference.

use std::io::BufReader;

use anyhow::Result;
use gpumemtrace_allocator_oracle::{
    AllocationNumber, EventReader, ModelledAllocator, OracleEvent, OracleRequest, PoolNumber, RequestFeature,
    RequestGenerator, RequestReader, STATISTICS, SegmentChange, StreamHeader, StreamNumber, compare,
    write_header,
};
use proptest::prelude::*;

const HEADER: StreamHeader = StreamHeader { card_bytes: 1 << 30, streams: 3, settings: String::new() };
const FEATURES: [RequestFeature; 6] = [
    RequestFeature::RecordStream,
    RequestFeature::EmptyCache,
    RequestFeature::Fraction,
    RequestFeature::Outside,
    RequestFeature::MemPools,
    RequestFeature::Captures,
];

fn generated(seed: u64, count: usize) -> Vec<OracleRequest> {
    RequestGenerator::new(seed, &HEADER, &FEATURES).take(count).collect()
}

#[test]
fn generated_stream_is_read_back() {
    let header = StreamHeader {
        settings: "max_split_size_mb:20,roundup_power2_divisions:[256:1,>:2]".into(),
        ..HEADER
    };
    let requests = generated(7, 50_000);
    let mut text = Vec::new();
    write_header(&mut text, &header).unwrap();
    for request in &requests {
        text.extend(format!("{request}\n").bytes());
    }
    let reader = RequestReader::new(BufReader::new(text.as_slice())).unwrap();
    assert_eq!(reader.header, header);
    assert_eq!(reader.collect::<Result<Vec<_>>>().unwrap(), requests);
}

#[test]
fn every_kind_of_request_is_generated_and_valid() {
    let requests = generated(3, 400_000);
    let mut kinds: Vec<char> =
        requests.iter().filter_map(|request| request.to_string().chars().next()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.iter().collect::<String>(), "abdefghklmprvwx");
    let (mut allocated, mut freed, mut is_routed) = (0_u32, std::collections::HashSet::new(), false);
    for request in requests {
        match request {
            OracleRequest::Allocate { bytes, stream } => {
                assert!(bytes > 0 && stream.0 < HEADER.streams);
                allocated += 1;
            }
            OracleRequest::Free(number) => assert!(number.0 < allocated && freed.insert(number)),
            OracleRequest::RecordStream(number, _) => {
                assert!(number.0 < allocated && !freed.contains(&number));
            }
            OracleRequest::BeginPool(..) => assert!(!std::mem::replace(&mut is_routed, true)),
            OracleRequest::EndPool(_) => assert!(std::mem::replace(&mut is_routed, false)),
            OracleRequest::EmptyCache(_) => assert!(!is_routed, "PyTorch refuses this during a capture"),
            _ => {}
        }
    }
}

#[test]
fn damaged_lines_are_refused() {
    for line in ["", "a", "a 5", "a 5 x", "a 5 0 0", "f", "f -1", "q 1", "aa 5 0", "b", "d 4294967296", "k 1"]
    {
        assert!(OracleRequest::parse(line).is_err(), "{line:?}");
    }
    for line in ["", "a", "a xyz", "a 1 2", "+ 1 2 3", "- 1 2 3 4 5", "o", "o 1 2", "k 1 2 3", "? 1"] {
        assert!(OracleEvent::parse(line).is_err(), "{line:?}");
    }
}

fn any_event() -> impl Strategy<Value = OracleEvent> {
    let change = prop_oneof![
        Just(SegmentChange::Allocated),
        Just(SegmentChange::Freed),
        Just(SegmentChange::Mapped),
        Just(SegmentChange::Unmapped)
    ];
    prop_oneof![
        any::<u64>().prop_map(OracleEvent::Allocated),
        any::<u64>().prop_map(|free_bytes| OracleEvent::OutOfMemory { free_bytes }),
        any::<(u64, u64)>().prop_map(|(request, addr)| OracleEvent::FreeCompleted { request, addr }),
        any::<[u64; STATISTICS.len()]>().prop_map(OracleEvent::Statistics),
        (change, any::<(u64, u64, u64, u32)>()).prop_map(|(change, (request, addr, bytes, stream))| {
            OracleEvent::Segment { change, request, addr, bytes, stream: StreamNumber(stream) }
        }),
    ]
}

/// A model that repeats given events, one per request.
struct Recorded(Vec<OracleEvent>);

impl ModelledAllocator for Recorded {
    fn serve(&mut self, number: u64, _: &OracleRequest, events: &mut Vec<OracleEvent>) -> Result<()> {
        events.push(self.0[number as usize].clone());
        Ok(())
    }
}

proptest! {
    #[test]
    fn events_are_read_back(events in proptest::collection::vec(any_event(), 0..50)) {
        let lines: Vec<String> = events.iter().map(|event| event.to_string() + "\n").collect();
        let text = lines.concat();
        let read: Result<Vec<_>> = EventReader::new(text.as_bytes()).collect();
        prop_assert_eq!(read.unwrap(), events);
    }

    /// Any changed, missing or additional event is a disagreement at its place.
    #[test]
    fn comparison_finds_any_difference(
        events in proptest::collection::vec(any_event(), 1..30), at in any::<prop::sample::Index>(), other in any_event(),
    ) {
        let at = at.index(events.len());
        let requests = || std::iter::repeat_n(OracleRequest::LogStatistics, events.len()).map(Ok);
        let compared = |native: Vec<OracleEvent>| {
            compare(requests(), native.into_iter().map(Ok), &mut Recorded(events.clone())).unwrap()
        };
        prop_assert_eq!(compared(events.clone()).unwrap().events, events.len() as u64);
        prop_assume!(other != events[at]);
        let mut changed = events.clone();
        changed[at] = other;
        prop_assert!(compared(changed).is_err());
        let mut shorter = events.clone();
        shorter.pop();
        let found = compared(shorter).unwrap_err();
        prop_assert_eq!((&found.model, &found.native), (&events.last().cloned(), &None));
        let mut longer = events.clone();
        longer.push(OracleEvent::Allocated(0));
        prop_assert_eq!(&compared(longer).unwrap_err().model, &None);
    }
}

#[test]
fn disagreement_shows_the_request_and_both_events() {
    let requests = [
        OracleRequest::Allocate { bytes: 1000, stream: StreamNumber(0) },
        OracleRequest::Free(AllocationNumber(0)),
        OracleRequest::EmptyCache(Some(PoolNumber(2))),
    ];
    let completes = |addr| OracleEvent::FreeCompleted { request: 1, addr };
    let mut model = Recorded(vec![OracleEvent::Allocated(0), completes(512), completes(1024)]);
    let native = [OracleEvent::Allocated(0), completes(512)];
    let found =
        compare(requests.into_iter().map(Ok), native.into_iter().map(Ok), &mut model).unwrap().unwrap_err();
    assert_eq!(
        found.to_string(),
        "the model differs after 2 equal events\n  request 0: a 1000 0\n  request 1: f 0\n  request 2: e 2\n  \
         model:   c 1 400\n  PyTorch: none\n"
    );
}

#[test]
fn frees_that_complete_in_one_request_are_compared_as_a_set() {
    struct BothAtOnce;
    impl ModelledAllocator for BothAtOnce {
        fn serve(&mut self, request: u64, _: &OracleRequest, events: &mut Vec<OracleEvent>) -> Result<()> {
            events.extend([512, 0].map(|addr| OracleEvent::FreeCompleted { request, addr }));
            Ok(())
        }
    }
    let requests = || std::iter::once(Ok(OracleRequest::LogStatistics));
    for order in [[0, 512], [512, 0]] {
        let native = order.map(|addr| Ok(OracleEvent::FreeCompleted { request: 0, addr }));
        assert!(compare(requests(), native.into_iter(), &mut BothAtOnce).unwrap().is_ok());
    }
    let other = [0, 1024].map(|addr| Ok(OracleEvent::FreeCompleted { request: 0, addr }));
    assert!(compare(requests(), other.into_iter(), &mut BothAtOnce).unwrap().is_err());
}
