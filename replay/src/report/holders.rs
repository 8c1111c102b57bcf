//! Who holds what leaks, as the program found it out, in the form of `--json`. `docs/analyses.md` has the definitions.

use serde::Serialize;

/// One look of the program at who holds its blocks.
#[derive(Clone, Debug, Serialize)]
pub struct HolderScan {
    /// Index in `traces`.
    pub trace: usize,
    /// Its number, from 0.
    pub look: u64,
    /// `exit`, `oom`, `signal` or `call`.
    pub when: Option<String>,
    /// From the start of recording, when it was over.
    pub time_ns: u64,
    /// Steps begun.
    pub step: Option<u64>,
    /// Leaks in tensors that there were then.
    pub leaks: Option<u64>,
    /// What it took to find them.
    pub report_ns: Option<u64>,
    /// What the walk through the program's objects took.
    pub walk_ns: Option<u64>,
    /// What it was given.
    pub limit_ns: Option<u64>,
    /// Objects that it came to.
    pub objects: Option<u64>,
    /// True where the time was up before all was found.
    pub is_cut: Option<bool>,
    /// Blocks of which nobody knows whose they are: freed in the meantime, or beyond what a look writes and a reader keeps.
    pub lost_blocks: u64,
    /// Why there was no walk.
    pub failed: Option<String>,
}

/// A name that holds blocks of a leak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// As a user would write it: `train._val_cache`, `train.model.layer1.weight`.
    pub name: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// How many things are in it, where it is a container.
    pub items: Option<u64>,
    /// What lies between it and the block, from outside in.
    pub chain: Vec<String>,
    /// So many blocks.
    pub blocks: u64,
    /// Of so many bytes.
    pub bytes: u64,
}

/// How much of a leak was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HolderCoverage {
    /// The look, by its number.
    pub look: u64,
    /// Blocks of the leak that were live then: of its lines, come since the growth began, in a step that had ended.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that a holder was found for.
    pub named_blocks: u64,
    /// The others, by the reason.
    pub unresolved: Vec<UnresolvedBlocks>,
}

/// Blocks that no holder was found for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnresolvedBlocks {
    /// `no_tensor`, `no_name`, `saved_unread`, `out_of_time`, `not_looked_at`, `not_listed` or `unreadable`.
    pub why: String,
    /// So many.
    pub blocks: u64,
    /// Of so many bytes.
    pub bytes: u64,
}
