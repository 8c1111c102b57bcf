//! References to leaking blocks, as the traced program found them. `docs/analyses/index.md` has the
//! definitions.

use schemars::JsonSchema;
use serde::Serialize;

use super::json_enum::json_enum;

/// One scan of the program for the holders of its blocks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct HolderScan {
    /// Index in the list `traces`.
    pub trace: usize,
    /// The number of the scan in its trace, from 0.
    pub scan: u64,
    /// Why the program scanned; `null` if it is unknown.
    pub trigger: Option<ScanTrigger>,
    /// The end of the scan, from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
    /// The number of leaks in PyTorch's blocks at that moment.
    pub leaks: Option<u64>,
    /// Time to find the leaks.
    pub report_ns: Option<u64>,
    /// Time to walk the objects of the program.
    pub walk_ns: Option<u64>,
    /// The time limit of the walk.
    pub limit_ns: Option<u64>,
    /// Time of all scans of the process so far, this one included; `null` for triggers that are
    /// not limited by it.
    pub spent_ns: Option<u64>,
    /// Time since the process first used a GPU; `null` as `spent_ns`.
    pub elapsed_ns: Option<u64>,
    /// The number of objects visited.
    pub objects: Option<u64>,
    /// True if the time limit ended the walk.
    pub is_cut: Option<bool>,
    /// Blocks without a result: freed meanwhile, or beyond the limits of the scan and of the
    /// reader.
    pub lost_blocks: u64,
    /// Why there was no walk; `null` if there was one.
    pub failed: Option<String>,
}

json_enum! {
    /// Why the program scanned for holders.
    enum ScanTrigger {
        /// An interval of the run was over, and the trace showed a leak.
        Interval = "interval",
        /// The program's main function returned.
        Return = "return",
        /// The process was about to exit.
        Exit = "exit",
        /// The program ran out of memory.
        Oom = "oom",
        /// The process received the signal for it.
        Signal = "signal",
        /// The program called `gpumemtrace.holders()`.
        Call = "call",
    }
}

/// A name in the program that holds blocks of a leak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Holder {
    /// The name as Python code: `train._val_cache`, `train.model.layer1.weight`.
    pub name: String,
    /// The type of the object behind the name.
    pub type_name: Option<String>,
    /// The number of items, if the object is a container.
    pub items: Option<u64>,
    /// The largest number of items it can have, such as `maxlen` of a deque; `null` if it has no
    /// known limit.
    pub limit_items: Option<u64>,
    /// The objects between the name and the block, outermost first.
    pub chain: Vec<String>,
    /// The number of blocks it holds.
    pub blocks: u64,
    /// The bytes of these blocks.
    pub bytes: u64,
}

/// How many blocks of a leak a scan examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HolderCoverage {
    /// The number of the scan.
    pub scan: u64,
    /// Blocks of the leak that were live: of its call sites, allocated since the growth began, in a
    /// step that had ended.
    pub blocks: u64,
    /// The bytes of these blocks.
    pub bytes: u64,
    /// Blocks with a known holder.
    pub named_blocks: u64,
    /// The other blocks, by reason.
    pub unresolved: Vec<UnresolvedBlocks>,
}

/// Blocks without a known holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UnresolvedBlocks {
    /// Why their holder is unknown.
    pub why: UnresolvedReason,
    /// The number of blocks.
    pub blocks: u64,
    /// The bytes of these blocks.
    pub bytes: u64,
}

json_enum! {
    /// Why the holder of a block is unknown.
    enum UnresolvedReason {
        /// The tensor has no name that leads to it.
        NoName = "no_name",
        /// No Python tensor has the block.
        NoTensor = "no_tensor",
        /// No name leads to the block, and `gc.freeze()` hides objects that may have it.
        Frozen = "frozen",
        /// There are more holders than the report lists.
        NotListed = "not_listed",
        /// There were more blocks than one scan examines.
        NotSearched = "not_searched",
        /// The time limit ended the walk.
        OutOfTime = "out_of_time",
        /// A saved tensor of the autograd graph may have it, and this PyTorch does not expose
        /// those.
        SavedUnread = "saved_unread",
        /// The trace contains no readable name.
        Unreadable = "unreadable",
    }
}
