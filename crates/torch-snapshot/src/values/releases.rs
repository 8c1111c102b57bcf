//! Which releases of PyTorch write the keys of a file.
//!
//! A snapshot does not name its release. But releases added keys, which are in every file from then
//! on. The table is from files of known releases: those of `tests/golden/snapshots/`, and those in
//! `tests/suite/allocator/recorded_snapshots.json`.

use super::{TextId, keys};

/// The oldest and the newest minor version of PyTorch 2 with known snapshots.
const KNOWN_MINORS: (u32, u32) = (1, 15);

/// Where a key is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyPlace {
    Root,
    Settings,
    Event,
}

struct ReleaseKey {
    place: KeyPlace,
    key: TextId,
    /// The newest minor version of PyTorch 2 of which a file without the key is known.
    last_without: u32,
    /// The oldest of which a file with the key is known.
    first_with: u32,
}

const fn row(place: KeyPlace, key: TextId, last_without: u32, first_with: u32) -> ReleaseKey {
    ReleaseKey { place, key, last_without, first_with }
}

static KEYS: &[ReleaseKey] = &[
    row(KeyPlace::Event, keys::TIME_US, 1, 3),
    row(KeyPlace::Root, keys::ALLOCATOR_SETTINGS, 1, 3),
    row(KeyPlace::Root, keys::EXTERNAL_ANNOTATIONS, 4, 5),
    row(KeyPlace::Event, keys::COMPILE_CONTEXT, 7, 8),
    row(KeyPlace::Settings, keys::CAPTURE_STREAM_REUSE, 8, 9),
    row(KeyPlace::Event, keys::USER_METADATA, 9, 10),
    row(KeyPlace::Event, keys::POOL_ID, 11, 12),
    row(KeyPlace::Root, keys::HOST_SEGMENTS, 12, 15),
    row(KeyPlace::Settings, keys::MAX_CACHED_SIZE, 12, 15),
];

/// The oldest and the newest minor version of PyTorch 2 that writes such a file; `None` if no known
/// one does. `has` is `None` if the file lacks the place of the key.
pub(super) fn find_releases(has: impl Fn(KeyPlace, TextId) -> Option<bool>) -> Option<(u32, u32)> {
    let (mut oldest, mut newest) = KNOWN_MINORS;
    for key in KEYS {
        match has(key.place, key.key) {
            Some(true) => oldest = oldest.max(key.last_without + 1),
            Some(false) => newest = newest.min(key.first_with - 1),
            None => {}
        }
    }
    (oldest <= newest).then_some((oldest, newest))
}

/// The keys of an event that [`find_releases`] asks for, as bits.
pub(super) fn event_key_bits(has: impl Fn(TextId) -> bool) -> u32 {
    let is_there = |key: &ReleaseKey| key.place == KeyPlace::Event && has(key.key);
    KEYS.iter().enumerate().filter(|(_, key)| is_there(key)).map(|(bit, _)| 1 << bit).sum()
}

/// Whether [`event_key_bits`] has the key.
pub(super) fn has_event_key(bits: u32, key: TextId) -> bool {
    KEYS.iter().enumerate().any(|(bit, row)| row.key == key && bits & (1 << bit) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_leave_few_releases() {
        let found = |places: &[KeyPlace], present: &[TextId]| {
            find_releases(|place, key| places.contains(&place).then(|| present.contains(&key)))
        };
        let all = &[KeyPlace::Root, KeyPlace::Settings, KeyPlace::Event][..];
        let of_2_6 = &[keys::TIME_US, keys::ALLOCATOR_SETTINGS, keys::EXTERNAL_ANNOTATIONS][..];
        assert_eq!(found(all, of_2_6), Some((5, 7)));
        assert_eq!(found(&[KeyPlace::Root, KeyPlace::Settings], &of_2_6[1..]), Some((5, 8)), "no events");
        assert_eq!(found(&[KeyPlace::Root, KeyPlace::Event], &[]), Some((1, 2)), "no settings");
        assert_eq!(found(&[], &[]), Some(KNOWN_MINORS));
        assert_eq!(found(all, &[keys::POOL_ID]), None, "pools, but no times");
    }
}
