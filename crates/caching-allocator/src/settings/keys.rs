//! The settings, one row each: the first release that has it, and how its value is read.

use super::parser::SettingsReader;
use super::{RoundupDivisions, Settings, SettingsError};
use crate::rules::TorchVersion;
use crate::size_rules::{LARGE_SEGMENT_BYTES, MIB, OWN_SEGMENT_FROM_BYTES};

type ReadFn = fn(&mut Settings, &mut SettingsReader) -> Result<(), SettingsError>;

/// A setting that at least one release has.
pub(super) struct SettingKey {
    pub(super) name: &'static str,
    since_minor: u32,
    /// Read before all others, wherever it stands.
    pub(super) is_read_first: bool,
    pub(super) read: ReadFn,
}

const fn row(name: &'static str, since_minor: u32, read: ReadFn) -> SettingKey {
    SettingKey { name, since_minor, is_read_first: false, read }
}

/// Releases without a wheel in the test (`tests/settings.rs`) have the date of the pull request.
static KEYS: &[SettingKey] = &[
    row("max_split_size_mb", 1, |settings, reader| {
        settings.max_split_bytes = read_oversize_bytes(settings, reader)?;
        Ok(())
    }),
    row("max_non_split_rounding_mb", 6, |settings, reader| {
        settings.max_non_split_rounding_bytes = read_oversize_bytes(settings, reader)?;
        Ok(())
    }),
    row("garbage_collection_threshold", 1, |settings, reader| {
        let (text, threshold) = reader.read_decimal()?;
        if threshold <= 0.0 || threshold >= 1.0 {
            return Err(reader.refuse(&text, "it must lie between 0 and 1"));
        }
        settings.gc_threshold = threshold;
        Ok(())
    }),
    row("roundup_power2_divisions", 1, |settings, reader| {
        settings.roundup = RoundupDivisions::parse(reader)?;
        Ok(())
    }),
    row("expandable_segments", 1, |settings, reader| {
        settings.expandable_segments = reader.read_bool()?;
        Ok(())
    }),
    SettingKey {
        name: "large_segment_size_mb",
        since_minor: 11,
        is_read_first: true,
        read: |settings, reader| {
            let mib = reader.read_integer()?;
            if mib <= OWN_SEGMENT_FROM_BYTES / MIB {
                return Err(reader.refuse(&mib.to_string(), "it must be more than 10"));
            }
            settings.large_segment_bytes = mib.min(u64::MAX / MIB) * MIB;
            Ok(())
        },
    },
    row("per_process_memory_fraction", 10, |settings, reader| {
        let (text, fraction) = reader.read_decimal()?;
        if !(0.0..=1.0).contains(&fraction) {
            return Err(reader.refuse(&text, "it must lie between 0 and 1"));
        }
        settings.memory_fraction = Some(fraction);
        Ok(())
    }),
    row("backend", 1, |settings, reader| {
        match reader.read()?.as_str() {
            "native" => settings.is_async_backend = false,
            "cudaMallocAsync" => settings.is_async_backend = true,
            other => return Err(reader.refuse(other, "it must be native or cudaMallocAsync")),
        }
        Ok(())
    }),
    row("release_lock_on_cudamalloc", 2, read_bool_without_effect),
    row("release_lock_on_hipmalloc", 2, read_bool_without_effect),
    row("pinned_use_cuda_host_register", 2, read_bool_without_effect),
    row("pinned_use_hip_host_register", 2, read_bool_without_effect),
    row("pinned_num_register_threads", 2, |settings, reader| {
        let threads = reader.read_integer()?;
        if !threads.is_power_of_two() || threads > 128 {
            return Err(reader.refuse(&threads.to_string(), "it must be a power of 2, at most 128"));
        }
        note(&mut settings.without_effect, reader);
        Ok(())
    }),
    row("pinned_use_background_threads", 6, read_bool_without_effect),
    row("pinned_reserve_segment_size_mb", 10, |settings, reader| {
        if reader.read_integer()? == 0 {
            return Err(reader.refuse("0", "it must be more than 0"));
        }
        note(&mut settings.without_effect, reader);
        Ok(())
    }),
    row("pinned_free_catch_all", 11, read_bool_without_effect),
    row("pinned_max_round_threshold_mb", 13, read_integer_without_effect),
    row("pinned_max_cached_size_mb", 13, read_integer_without_effect),
    row("graph_capture_record_stream_reuse", 9, |settings, reader| {
        let key = reader.key();
        if reader.read_bool()? {
            note(&mut settings.not_modelled, reader);
        } else {
            settings.not_modelled.retain(|known| *known != key);
        }
        Ok(())
    }),
    row("throw_on_cudamalloc_oom", 12, |settings, reader| {
        settings.throws_at_limit = reader.read_bool()?;
        Ok(())
    }),
    row("expandable_segments_reserve", 14, skip_not_modelled),
    row("expandable_segments_reserve_by_class", 14, skip_not_modelled),
];

/// The row of a setting, if the release has it.
pub(super) fn find(name: &str, version: TorchVersion) -> Result<&'static SettingKey, SettingsError> {
    let key = KEYS.iter().find(|key| key.name == name);
    if let Some(key) = key.filter(|key| key.since_minor <= version.minor()) {
        return Ok(key);
    }
    let since = key.and_then(|key| TorchVersion::new(key.since_minor));
    Err(SettingsError::UnknownKey { key: name.to_owned(), version, since })
}

/// Reads a size in MiB that is at least the size of a large segment.
fn read_oversize_bytes(settings: &Settings, reader: &mut SettingsReader) -> Result<u64, SettingsError> {
    let mib = reader.read_integer()?;
    // Releases up to 2.9 refuse 20 itself.
    let least = if reader.is_before_unified_parser() {
        LARGE_SEGMENT_BYTES / MIB + 1
    } else {
        settings.large_segment_bytes / MIB
    };
    if mib < least {
        return Err(
            reader.refuse(&mib.to_string(), format!("torch {} needs at least {least}", reader.version()))
        );
    }
    Ok(mib.min(u64::MAX / MIB) * MIB)
}

fn read_bool_without_effect(
    settings: &mut Settings,
    reader: &mut SettingsReader,
) -> Result<(), SettingsError> {
    reader.read_bool()?;
    note(&mut settings.without_effect, reader);
    Ok(())
}

fn read_integer_without_effect(
    settings: &mut Settings,
    reader: &mut SettingsReader,
) -> Result<(), SettingsError> {
    reader.read_integer()?;
    note(&mut settings.without_effect, reader);
    Ok(())
}

fn skip_not_modelled(settings: &mut Settings, reader: &mut SettingsReader) -> Result<(), SettingsError> {
    reader.skip_value()?;
    note(&mut settings.not_modelled, reader);
    Ok(())
}

/// Adds the setting that is being read to a list.
fn note(list: &mut Vec<&'static str>, reader: &SettingsReader) {
    if !list.contains(&reader.key()) {
        list.push(reader.key());
    }
}
