//! The settings that are tried if the user names none.

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_whatif::Scenario;

/// First minor version that accepts `max_split_size_mb:20`. Earlier ones need one more.
const SPLITS_FROM_20_SINCE: u32 = 10;
const MIB: u64 = 1 << 20;

/// Settings with the size in MiB from which on they change nothing; 0 without one.
const OPTIONS: &[(&str, u64)] = &[
    ("", 0),
    ("expandable_segments:True", 0),
    ("max_split_size_mb:64", 64),
    ("max_split_size_mb:128", 128),
    ("max_split_size_mb:256", 256),
    ("max_split_size_mb:512", 512),
    ("roundup_power2_divisions:4", 0),
    ("roundup_power2_divisions:8", 0),
    ("roundup_power2_divisions:16", 0),
    ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 0),
    ("large_segment_size_mb:64", 0),
    ("large_segment_size_mb:256", 0),
    ("max_split_size_mb:128,max_non_split_rounding_mb:64", 128),
    ("expandable_segments:True,roundup_power2_divisions:8", 0),
];
/// The place in [`OPTIONS`] of the least `max_split_size_mb`, which depends on the release.
const SETTINGS_BEFORE_SPLITS: usize = 2;
/// These act only below a limit, from a part of it on.
const WITH_LIMIT: &[&str] = &["garbage_collection_threshold:0.6", "garbage_collection_threshold:0.8"];

/// The settings for a run of this release, which reserved at most `peak_bytes`. Those that the
/// release does not have, or that can change nothing, are left out. A memory limit stays.
pub(super) fn grid(
    base: &Scenario,
    version: TorchVersion,
    card: Option<u64>,
    peak_bytes: u64,
) -> Vec<Scenario> {
    let least_split = if version.minor() < SPLITS_FROM_20_SINCE { 21 } else { 20 };
    let mut options: Vec<(String, u64)> =
        OPTIONS.iter().map(|(setting, mib)| ((*setting).to_owned(), *mib)).collect();
    // Of settings with equal results, the first is proposed.
    options.insert(SETTINGS_BEFORE_SPLITS, (format!("max_split_size_mb:{least_split}"), least_split));
    options.retain(|(_, mib)| *mib == 0 || mib * MIB < peak_bytes);
    let mut settings: Vec<String> = options.into_iter().map(|(setting, _)| setting).collect();
    if let Some(fraction) = base.memory_fraction() {
        settings.extend(WITH_LIMIT.iter().map(|setting| (*setting).to_owned()));
        for setting in &mut settings {
            let separator = if setting.is_empty() { "" } else { "," };
            *setting = format!("{setting}{separator}per_process_memory_fraction:{fraction}");
        }
    }
    settings.iter().filter_map(|setting| Scenario::new(setting, version, card).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(recorded: &str, minor: u32, peak_mib: u64) -> Vec<String> {
        let version = TorchVersion::new(minor).expect("known");
        let base = Scenario::new(recorded, version, Some(1 << 30)).expect("accepted");
        let grid = grid(&base, version, Some(1 << 30), peak_mib * MIB);
        assert!(grid.len() <= 24);
        grid.into_iter().map(|scenario| scenario.setting).collect()
    }

    #[test]
    fn grid_suits_the_release_and_the_run() {
        let has = |grid: &[String], setting: &str| grid.iter().any(|other| other == setting);
        for minor in 1..=15 {
            let grid = settings("", minor, 2048);
            let least = if minor < 10 { "max_split_size_mb:21" } else { "max_split_size_mb:20" };
            assert!(has(&grid, least), "torch 2.{minor}");
            let place = |wanted: &str| grid.iter().position(|setting| setting == wanted);
            assert!(place(least) < place("max_split_size_mb:64"), "the least limit comes first");
            assert_eq!(has(&grid, "large_segment_size_mb:64"), minor >= 11, "torch 2.{minor}");
            assert!(!grid.iter().any(|setting| setting.contains("garbage")), "there is no limit");
        }
        let small = settings("", 15, 100);
        assert!(has(&small, "max_split_size_mb:64") && !has(&small, "max_split_size_mb:128"));
    }

    #[test]
    fn limit_of_the_run_stays() {
        let grid = settings("per_process_memory_fraction:0.5", 15, 2048);
        assert!(grid.iter().all(|setting| setting.ends_with("per_process_memory_fraction:0.5")), "{grid:?}");
        assert!(grid.iter().any(|setting| setting.starts_with("garbage_collection_threshold:0.8,")));
        let no_limit = settings("per_process_memory_fraction:1.0", 15, 2048);
        assert!(!no_limit.iter().any(|setting| setting.contains("fraction")));
    }
}
