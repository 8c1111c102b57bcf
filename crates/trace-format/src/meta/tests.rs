use super::*;
use proptest::prelude::*;

fn sample() -> Meta {
    let mut meta = Meta::default();
    meta.set_number("pid", 42);
    meta.set_text("host", "node7");
    meta.set_list("command", vec!["python".into(), "train.py".into()]);
    meta
}

#[test]
fn metadata_round_trips_and_later_values_win() {
    let mut meta = Meta::decode(&sample().encode()).unwrap();
    assert_eq!(meta, sample());
    let mut later = Meta::default();
    later.set_number("pid", 43);
    later.set_text("torch", "2.15.0");
    meta.merge(later);
    assert_eq!(
        (meta.number("pid"), meta.text("torch"), meta.text("host")),
        (Some(43), Some("2.15.0"), Some("node7"))
    );
    assert_eq!(meta.number("host"), None, "a text is not a number");
}

#[test]
fn metadata_bytes_are_stable() {
    let mut meta = Meta::default();
    meta.set_number("pid", 42);
    let golden = [
        1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, b'p', b'i', b'd', 0, 0, 0, 0, 42, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(meta.encode(), golden);
}

#[test]
fn hostile_length_and_trailing_bytes_are_refused() {
    let mut bytes = sample().encode();
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(Meta::decode(&bytes).is_err());
    let mut long = sample().encode();
    long.push(0);
    assert!(Meta::decode(&long).is_err());
}

#[test]
fn end_round_trips_with_counters_of_a_newer_recorder() {
    let mut counters = Counters::default();
    counters.set(Counter::TruncatedStacks, 7);
    counters.other.push(("from_the_future".into(), 3));
    let end =
        End { reason: EndReason::QuickExit(2), events: 9, time_ns: 5, message: String::new(), counters };
    assert_eq!(End::decode(&end.encode()), Ok(end));
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
        let _ = Meta::decode(&bytes);
        let _ = End::decode(&bytes);
    }
}

#[test]
fn settings_are_those_that_the_release_reads() {
    let settings = |torch: Option<&str>, cuda: Option<&str>, generic: Option<&str>| {
        let mut meta = Meta::default();
        let values = [("torch", torch), ("allocator_conf", cuda), ("allocator_conf_generic", generic)];
        for (name, value) in values {
            if let Some(value) = value {
                meta.set_text(name, value);
            }
        }
        meta.allocator_conf().map(str::to_owned)
    };
    for torch in ["2.9.1+cu128", "2.10.0", "2.15.0a0"] {
        assert_eq!(settings(Some(torch), Some("a:1"), Some("b:1")).as_deref(), Some("a:1"), "{torch}");
    }
    assert_eq!(settings(Some("2.9.1+cu128"), None, Some("b:1")), None);
    assert_eq!(settings(Some("2.10.0"), None, Some("b:1")).as_deref(), Some("b:1"));
    assert_eq!(settings(None, None, Some("b:1")).as_deref(), Some("b:1"));
}
