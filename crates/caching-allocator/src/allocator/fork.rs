//! Predicts several settings at once, as long as they lead to the same.
//!
//! Many programs have no block that is as large as `max_split_size_mb`, or no size that
//! `roundup_power2_divisions` rounds up. Such settings change nothing, and one allocator stands for
//! all of them. Before the first request that may make a difference, a copy goes on with the other
//! settings.

use super::CachingAllocator;
use crate::backend::CacheBackend;
use crate::settings::Settings;
use crate::size_rules::segment_bytes;
use crate::stats::StatKind;

/// Settings that only a request can tell from those of an allocator.
#[derive(Clone, Debug)]
pub struct SettingsBeside {
    settings: Settings,
    /// They round all sizes as the allocator does.
    rounds_alike: bool,
    /// They treat blocks of at least this size differently; `u64::MAX` if they treat none so.
    from_bytes: u64,
}

impl SettingsBeside {
    /// `settings` and those of an allocator. `None` if more than a request tells them apart.
    pub fn new(settings: &Settings, of_allocator: &Settings) -> Option<Self> {
        let &Settings { max_split_bytes, roundup, .. } = of_allocator;
        let has_equal_limits = settings.max_split_bytes == max_split_bytes;
        let beside = Self {
            settings: settings.clone(),
            rounds_alike: settings.roundup == roundup,
            from_bytes: if has_equal_limits {
                u64::MAX
            } else {
                settings.max_split_bytes.min(max_split_bytes)
            },
        };
        let others_equal = Settings { max_split_bytes, roundup, ..settings.clone() } == *of_allocator;
        others_equal.then_some(beside)
    }
}

impl<B: CacheBackend> CachingAllocator<B> {
    /// Whether the other settings serve this request, and free its block, as the present ones do,
    /// if that is so for all requests before it. May be false where they do.
    pub fn serves_alike(&self, other: &SettingsBeside, requested_bytes: u64) -> bool {
        let bytes = self.block_bytes(requested_bytes);
        let is_rounded_alike =
            other.rounds_alike || bytes == self.block_bytes_with(&other.settings, requested_bytes);
        is_rounded_alike && self.largest_block_after(bytes.unwrap_or(0)) < other.from_bytes
    }

    /// An upper bound for each block, so far and with a new segment for a block of `bytes`.
    fn largest_block_after(&self, bytes: u64) -> u64 {
        let large_bytes = self.settings.large_segment_bytes;
        if self.settings.expandable_segments {
            // Free blocks next to each other merge. A block touches two pages that are not full.
            let reserved_bytes = self.stats.current(StatKind::ReservedBytes);
            return reserved_bytes.saturating_add(bytes).saturating_add(2 * large_bytes);
        }
        self.largest_segment_bytes.max(segment_bytes(bytes, large_bytes))
    }
}

impl<B: CacheBackend + Clone> CachingAllocator<B> {
    /// A copy that goes on with the other settings. `None` while requests go to a private pool:
    /// what sends them there cannot be copied.
    pub fn fork(&self, other: &SettingsBeside) -> Option<Self> {
        Some(Self {
            backend: self.backend.clone(),
            settings: other.settings.clone(),
            rules: self.rules,
            blocks: self.blocks.clone(),
            allocated: self.allocated.clone(),
            arenas: self.arenas.clone(),
            pools: self.pools.copy_without_routes()?,
            pending: self.pending.clone(),
            pending_requested_bytes: self.pending_requested_bytes,
            stats: self.stats.clone(),
            limit_bytes: self.limit_bytes,
            next_order: self.next_order,
            did_address_decide: self.did_address_decide,
            largest_segment_bytes: self.largest_segment_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::{OutsideMemory, SimulatedDevice};
    use crate::tests::Xorshift;
    use crate::{ProgramBlock, Rules, TorchVersion};

    const MIB: u64 = 1 << 20;
    const SETTINGS: [&str; 5] = [
        "",
        "max_split_size_mb:64",
        "max_split_size_mb:32,roundup_power2_divisions:4",
        "expandable_segments:True",
        "expandable_segments:True,max_split_size_mb:64",
    ];

    /// Makes random requests to an allocator, to one with other settings, and from the request on
    /// that may tell them apart, to a copy. Until then the first, and then the copy, must do what
    /// the second does. Returns the requests before the copy was made; `None` for settings of which
    /// no copy can be made.
    fn compare(
        own: &Settings,
        other: &Settings,
        version: TorchVersion,
        random: &mut Xorshift,
    ) -> Option<u64> {
        let beside = SettingsBeside::new(other, own)?;
        let begin = |settings: &Settings| {
            let device = SimulatedDevice::new(400 * MIB, OutsideMemory::default(), |_| ());
            CachingAllocator::new(device, settings.clone(), Rules::of_version(version))
        };
        let (mut leader, mut expected, mut copy) = (begin(own), begin(other), None);
        let unit_bytes = [512, 1 << 16, MIB, 3 * MIB][random.below(4) as usize];
        // The blocks of the three allocators.
        let mut blocks: Vec<[Option<ProgramBlock>; 3]> = Vec::new();
        let mut requests_before = 0;
        for _ in 0..200 {
            let (bytes, stream) = ((1 + random.below(63)) * unit_bytes, random.below(2));
            let kind = random.below(16);
            if kind == 0 {
                leader.release_cached();
                expected.release_cached();
                copy.iter_mut().for_each(CachingAllocator::release_cached);
            } else if kind < 8 && !blocks.is_empty() {
                let freed = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
                let [of_leader, of_expected, of_copy] = freed;
                let caches = [(Some(&mut leader), of_leader), (Some(&mut expected), of_expected)];
                for (cache, block) in caches.into_iter().chain([(copy.as_mut(), of_copy)]) {
                    cache.into_iter().zip(block).for_each(|(cache, block)| cache.free_live(block));
                }
            } else {
                if copy.is_none() && !leader.serves_alike(&beside, bytes) {
                    copy = leader.fork(&beside);
                    blocks = blocks.into_iter().map(|[own, expected, _]| [own, expected, own]).collect();
                }
                requests_before += u64::from(copy.is_none());
                let of_leader = leader.alloc_live(bytes, stream).ok();
                let of_expected = expected.alloc_live(bytes, stream).ok();
                let of_copy = copy.as_mut().and_then(|copy| copy.alloc_live(bytes, stream).ok());
                let (actual, of_actual) = copy.as_ref().map_or((&leader, of_leader), |copy| (copy, of_copy));
                let addr = |cache: &CachingAllocator<_>, block: Option<_>| {
                    block.map(|block| cache.address_of(block))
                };
                assert_eq!(addr(actual, of_actual), addr(&expected, of_expected));
                blocks.push([of_leader, of_expected, of_copy]);
            }
            let actual = copy.as_ref().unwrap_or(&leader);
            assert_eq!(actual.held_bytes(), expected.held_bytes());
            assert_eq!(actual.did_address_decide(), expected.did_address_decide());
            assert_eq!(actual.state_print(), expected.state_print());
        }
        Some(requests_before)
    }

    #[test]
    fn settings_make_no_difference_until_the_copy() {
        let mut random = Xorshift(0x9e37_79b9);
        let (mut pairs, mut requests_before, mut without_copy) = (0, 0, 0);
        for version in TorchVersion::all() {
            let settings = SETTINGS.map(|text| Settings::parse(text, version).expect("accepted"));
            let all = settings.iter().flat_map(|own| settings.iter().map(move |other| (own, other)));
            for (own, other) in all.filter(|(own, other)| own != other) {
                for _ in 0..8 {
                    let Some(before) = compare(own, other, version, &mut random) else { continue };
                    (pairs, requests_before) = (pairs + 1, requests_before + before);
                    without_copy += u64::from(before > 80);
                }
            }
        }
        assert!(pairs > 500 && requests_before > 10 * pairs, "{pairs} {requests_before}");
        assert!(without_copy > pairs / 10 && without_copy < pairs / 2, "{pairs} {without_copy}");
    }

    #[test]
    fn small_blocks_need_no_copy_and_large_ones_do() {
        let version = TorchVersion::LATEST;
        let parse = |text| Settings::parse(text, version).expect("accepted");
        let device = SimulatedDevice::new(1 << 30, OutsideMemory::default(), |_| ());
        let mut cache = CachingAllocator::new(device, parse(""), Rules::of_version(version));
        let beside = |text| SettingsBeside::new(&parse(text), &parse(""));
        assert!(beside("expandable_segments:True").is_none());
        let limited = beside("max_split_size_mb:64").expect("only a request tells them apart");
        let rounded = beside("roundup_power2_divisions:8").expect("only a request tells them apart");
        for (mib, is_alike) in [(1, true), (62, true), (63, false)] {
            assert_eq!(cache.serves_alike(&limited, mib * MIB), is_alike, "{mib}");
        }
        assert!(cache.serves_alike(&rounded, 9 * MIB) && !cache.serves_alike(&rounded, 9 * MIB + 512));
        cache.alloc(64 * MIB, 0).expect("memory");
        assert!(!cache.serves_alike(&limited, MIB), "a request may get a part of the large block");
    }
}
