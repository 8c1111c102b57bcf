//! Compares [`Settings::parse`] with PyTorch's own parsers.
//!
//! `scripts/generate/allocator-settings` ran them and wrote `tests/settings/`. Every text must be
//! accepted and refused by the same releases, and give the same divisions.

use gpumemtrace_caching_allocator::{Settings, TorchVersion};

const RECORDED: &[(&str, &str)] = &[
    ("2.1.2", include_str!("settings/2.1.2.tsv")),
    ("2.3.1", include_str!("settings/2.3.1.tsv")),
    ("2.5.1", include_str!("settings/2.5.1.tsv")),
    ("2.7.1", include_str!("settings/2.7.1.tsv")),
    ("2.9.1", include_str!("settings/2.9.1.tsv")),
    ("2.12.0", include_str!("settings/2.12.0.tsv")),
    ("2.15.0", include_str!("settings/2.15.0.tsv")),
];

#[test]
fn settings_are_read_as_pytorch_reads_them() {
    for (version, lines) in RECORDED {
        let release = TorchVersion::parse(version).expect("known");
        let mut compared = 0;
        for line in lines.lines() {
            let [text, result, divisions] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("three columns: {line}")
            };
            let parsed = Settings::parse(text, release);
            assert_eq!(parsed.is_ok(), result == "ok", "torch {version}, {text}: {parsed:?}");
            if let (Ok(settings), false) = (parsed, divisions == "-") {
                let values = (20..36).map(|log2| settings.roundup.divisions_for(1 << log2).to_string());
                assert_eq!(values.collect::<Vec<_>>().join(" "), divisions, "torch {version}, {text}");
                compared += 1;
            }
        }
        assert!(compared > 20 || *version == "2.1.2", "torch {version}: {compared} texts have divisions");
    }
}

#[test]
fn values_have_their_units() {
    let text = "max_split_size_mb:200,max_non_split_rounding_mb:40,garbage_collection_threshold:0.8,\
                large_segment_size_mb:32,per_process_memory_fraction:0.5,expandable_segments:True,\
                pinned_use_background_threads:True,graph_capture_record_stream_reuse:True";
    let settings = Settings::parse(text, TorchVersion::LATEST).expect("accepted");
    assert_eq!(
        settings,
        Settings {
            max_split_bytes: 200 << 20,
            max_non_split_rounding_bytes: 40 << 20,
            gc_threshold: 0.8,
            memory_fraction: Some(0.5),
            large_segment_bytes: 32 << 20,
            expandable_segments: true,
            without_effect: vec!["pinned_use_background_threads"],
            not_modelled: vec!["graph_capture_record_stream_reuse"],
            ..Settings::default()
        }
    );
}

#[test]
fn limited_splits_of_expandable_segments_stop_early_releases() {
    let stops = |text: &str, minor: u32| {
        let version = TorchVersion::new(minor).expect("known");
        Settings::parse(text, version).expect("accepted").stops_pytorch(version)
    };
    let both = "expandable_segments:True,max_split_size_mb:64";
    assert!(stops(both, 4) && !stops(both, 5));
    assert!(!stops("expandable_segments:True", 4) && !stops("max_split_size_mb:64", 4));
}

#[test]
fn errors_say_what_is_accepted() {
    let message = |text: &str, minor: u32| {
        let version = TorchVersion::new(minor).expect("known");
        Settings::parse(text, version).expect_err("refused").to_string()
    };
    for (text, minor, expected) in [
        ("max_split_size_mb:19", 15, "max_split_size_mb:19 is refused: torch 2.15 needs at least 20"),
        ("max_split_size_mb:20", 9, "max_split_size_mb:20 is refused: torch 2.9 needs at least 21"),
        ("expandable_segments:true", 15, "expandable_segments:true is refused: True or False is expected"),
        (
            "large_segment_size_mb:32",
            9,
            "torch 2.9 has no setting \"large_segment_size_mb\"; it came with torch 2.11",
        ),
        ("foo:1", 15, "torch 2.15 has no setting \"foo\""),
        ("max_split_size_mb", 15, "max_split_size_mb: the value is missing or incomplete"),
        ("backend:cuda", 15, "backend:cuda is refused: it must be native or cudaMallocAsync"),
    ] {
        assert_eq!(message(text, minor), expected);
    }
}
