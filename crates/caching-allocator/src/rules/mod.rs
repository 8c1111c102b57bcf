//! What differs between releases of PyTorch, beside the settings that each release accepts.
//!
//! [`Rules::of_version`] starts with the rules of 2.1 and applies the rows of one table. A row is
//! one change with the release that first had it and the pull request.

mod version;

pub use version::{TorchVersion, VersionError};

/// The order in which active pools are asked for a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolRouting {
    /// The pool that became active first.
    OldestFirst,
    /// The pool that became active last, so nested pools work.
    NewestFirst,
}

/// Which of several free blocks of equal size serves a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EqualSizeOrder {
    /// The one with the lowest address.
    ByAddress,
    /// Blocks are numbered as they are created, and the lowest number comes first. The part of a
    /// split block that is handed out gets a new number.
    ByBlockNumber,
    /// Segments are numbered as they are created; their blocks inherit the number. Address next.
    BySegmentNumber,
}

/// When a pool with `use_on_oom` serves a request that the driver refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FallbackPools {
    /// Never: the release has no such pools.
    Never,
    /// After cached memory was released and the driver refused again.
    AfterRetry,
    /// Before cached memory is released.
    BeforeRelease,
}

/// The rules of one release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent rule")]
pub struct Rules {
    /// Which pool serves a stream that several active pools accept.
    pub routing: PoolRouting,
    /// Which of several free blocks of equal size is taken.
    pub equal_size_order: EqualSizeOrder,
    /// With one division, the size of a request is not rounded at all. Later, as without divisions.
    pub one_division_keeps_size: bool,
    /// Private pools use expandable segments too, if these are enabled.
    pub private_pools_expand: bool,
    /// When pools that allow it serve a request that the driver refused.
    pub fallback_pools: FallbackPools,
    /// Such a pool serves with expandable blocks too.
    pub fallback_expands: bool,
    /// `empty_cache()` frees pools without users also while another pool is active.
    pub empties_unused_pools: bool,
    /// Memory is released and requests are retried while a pool is active, unless a graph is being
    /// captured.
    pub pools_allow_release: bool,
    /// A memory fraction of 1 sets no limit. Before, it sets one, which also enables garbage
    /// collection.
    pub full_fraction_is_no_limit: bool,
}

/// One change of a rule.
struct RuleChange {
    /// First minor version of PyTorch 2 with the new rule.
    since_minor: u32,
    /// Number of the pull request in pytorch/pytorch; 0 if it is not known.
    #[cfg_attr(not(test), expect(dead_code, reason = "the source of the row"))]
    pull_request: u32,
    apply: fn(&mut Rules),
}

const RULES_OF_2_1: Rules = Rules {
    routing: PoolRouting::OldestFirst,
    equal_size_order: EqualSizeOrder::ByAddress,
    one_division_keeps_size: true,
    private_pools_expand: false,
    fallback_pools: FallbackPools::Never,
    fallback_expands: true,
    empties_unused_pools: false,
    pools_allow_release: false,
    full_fraction_is_no_limit: false,
};

/// All changes, the oldest first. Which settings exist is in the table of `settings/keys.rs`.
static CHANGES: &[RuleChange] = &[
    RuleChange { since_minor: 4, pull_request: 0, apply: |rules| rules.one_division_keeps_size = false },
    RuleChange { since_minor: 5, pull_request: 128_068, apply: |rules| rules.private_pools_expand = true },
    RuleChange {
        since_minor: 8,
        pull_request: 151_487,
        apply: |rules| rules.fallback_pools = FallbackPools::AfterRetry,
    },
    RuleChange { since_minor: 8, pull_request: 154_746, apply: |rules| rules.empties_unused_pools = true },
    RuleChange { since_minor: 10, pull_request: 0, apply: |rules| rules.fallback_expands = false },
    RuleChange {
        since_minor: 10,
        pull_request: 161_193,
        apply: |rules| rules.routing = PoolRouting::NewestFirst,
    },
    RuleChange { since_minor: 10, pull_request: 0, apply: |rules| rules.full_fraction_is_no_limit = true },
    RuleChange {
        since_minor: 11,
        pull_request: 0,
        apply: |rules| rules.fallback_pools = FallbackPools::BeforeRelease,
    },
    RuleChange {
        since_minor: 12,
        pull_request: 0,
        apply: |rules| rules.equal_size_order = EqualSizeOrder::ByBlockNumber,
    },
    RuleChange {
        since_minor: 13,
        pull_request: 0,
        apply: |rules| rules.equal_size_order = EqualSizeOrder::BySegmentNumber,
    },
    RuleChange { since_minor: 13, pull_request: 0, apply: |rules| rules.pools_allow_release = true },
];

impl Rules {
    /// The rules of a release.
    pub fn of_version(version: TorchVersion) -> Self {
        let mut rules = RULES_OF_2_1;
        for change in CHANGES.iter().take_while(|change| change.since_minor <= version.minor()) {
            (change.apply)(&mut rules);
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_sorted_and_each_changes_a_rule() {
        assert!(CHANGES.is_sorted_by_key(|change| change.since_minor));
        let mut rules = RULES_OF_2_1;
        for change in CHANGES {
            let before = rules;
            (change.apply)(&mut rules);
            assert_ne!(before, rules, "since 2.{} (#{})", change.since_minor, change.pull_request);
        }
        assert_eq!(rules, Rules::of_version(TorchVersion::LATEST));
        assert_eq!(TorchVersion::all().next().map(Rules::of_version), Some(RULES_OF_2_1));
    }
}
