use super::size::parse_bytes;
use super::*;
use crate::report::Site;

fn error(text: &str) -> String {
    let error = Budget::from_str(text).unwrap_err();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[test]
fn sizes_parse_with_units_and_reject_unknown_ones() {
    for (text, expected) in [
        ("512", Some(512)),
        ("1_024 B", Some(1024)),
        ("1.5 GiB", Some(3 << 29)),
        ("20MB", Some(20_000_000)),
        (" 2 KiB ", Some(2048)),
        ("0", Some(0)),
        ("5 Gbit", None),
        ("", None),
        ("GiB", None),
        ("-1", None),
        ("1.2.3 KiB", None),
        ("99999999999 TiB", None),
    ] {
        assert_eq!(parse_bytes(text), expected, "{text}");
    }
}

#[test]
fn file_has_default_tolerance_and_one_per_limit() {
    let budget = Budget::from_str(
        "tolerance = '2 %'\n[peak]\nlive = 1000\nreserved = { limit = '1 KiB', tolerance = 24, if_unknown = 'pass' }\n\
         [leaks]\ncount = 0\n[[site]]\nmatch = 'train.py:41'\npeak = '4 MiB'\nif_unknown = 'pass'\n",
    )
    .unwrap();
    assert_eq!(budget.tolerance.unwrap().bytes_for_limit(1000), 20);
    assert_eq!(budget.peak.live.unwrap().bytes, 1000);
    let reserved = budget.peak.reserved.unwrap();
    assert_eq!((reserved.bytes, reserved.tolerance.unwrap().bytes_for_limit(1024)), (1024, 24));
    assert_eq!(reserved.if_unknown, Some(IfUnknown::Pass));
    assert_eq!(budget.leaks.count.unwrap().limit, 0);
    assert_eq!(budget.site[0].peak.unwrap().bytes, 4 << 20);
}

#[test]
fn errors_are_one_sentence_with_the_line() {
    assert!(error("[peak]\nliev = 3\n").starts_with("line 2: unknown field `liev`, expected one of `live`"));
    assert!(error("[peek]\nlive = 3\n").contains("unknown field `peek`"));
    assert!(error("[peak]\nlive = '5 Gbit'\n").contains("a size, such as 1073741824 or \"1.5 GiB\""));
    assert!(error("[peak]\nlive = -5\n").contains("a size"));
    assert!(error("[peak]\nlive = { limit = 3, tolerence = 1 }\n").contains("unknown field `tolerence`"));
    assert!(error("tolerance = 'much'\n").contains("a tolerance, such as \"2%\""));
    assert!(error("[leaks]\ncount = '1 KiB'\n").contains("a number"));
    assert!(error("[[site]]\npeak = 3\n").contains("missing field `match`"));
    assert!(error("[[site]]\nmatch = ''\npeak = 3\n").contains("`match` is empty"));
    assert!(error("[[site]]\nmatch = 'a.py'\n").contains("the site `a.py` has no limit"));
    assert!(error("[peak\n").starts_with("line 1: "));
    for without_limits in ["", "tolerance = '1 %'\n", "[peak]\n"] {
        assert!(error(without_limits).contains("has no budget"), "{without_limits}");
    }
}

#[test]
fn patterns_match_files_lines_and_functions() {
    let site = |file: &str, line: u32, function: &str| Site {
        file: Some(file.to_owned()),
        line: Some(line),
        function: Some(function.to_owned()),
        ..crate::callsite::symbols::StackSymbols::unknown_site()
    };
    let python = site("/work/net/model.py", 41, "Net.forward");
    let matches = |pattern: &str, site: &Site| SitePattern::new(pattern).matches_site(site);
    for pattern in [
        "model.py",
        "net/model.py",
        "/work/net/model.py",
        "model.py:41",
        "model.py:40-50",
        "model.py:Net.forward",
        "model.py:Net.*",
        "Net.forward",
        "*.forward",
        "*/model.py",
        "mode?.py:41",
        "*",
    ] {
        assert!(matches(pattern, &python), "{pattern}");
    }
    let windows = site(r"D:\work\net\model.py", 41, "Net.forward");
    for pattern in [
        "model.py:41",
        "net/model.py",
        r"net\model.py:Net.*",
        r"D:\work\net\model.py:41",
        "D:/work/*/model.py",
    ] {
        assert!(matches(pattern, &windows), "{pattern}");
    }
    for pattern in [
        "odel.py",
        "model.py:4",
        "model.py:42-50",
        "model.p",
        "forward",
        "net",
        "other.py:Net.forward",
        "model.py:",
        "?",
    ] {
        assert!(!matches(pattern, &python), "{pattern}");
    }
    let native =
        Site { module: Some("/opt/libpool.so.3".to_owned()), ..site("pool.cpp", 7, "pool::Arena::grow") };
    for pattern in [
        "libpool.so*",
        "pool::Arena::grow",
        "pool.cpp:pool::Arena::grow",
        "libpool.so.3:pool::*",
        "pool.cpp:7",
    ] {
        assert!(matches(pattern, &native), "{pattern}");
    }
    assert!(!matches("pool::Arena", &native));
}

#[test]
fn example_in_the_documentation_parses_with_every_table() {
    let page = include_str!("../../../../docs/commands/check.md");
    let (_, example) = page.split_once("```toml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let budget = Budget::from_str(example).unwrap();
    let tables = (
        budget.peak.live,
        budget.gap.bytes,
        budget.leaks.bytes_per_step,
        budget.step.peak,
        budget.site[0].peak,
    );
    assert!(matches!(tables, (Some(_), Some(_), Some(_), Some(_), Some(_))), "{budget:?}");
    assert!(budget.tolerance.is_some() && budget.leaks.count.is_some());
}
