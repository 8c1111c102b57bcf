//! Ids of call sites and stacks.
//!
//! `callsite::symbols::StackSymbols` assigns them during a pass and resolves them. They differ from
//! run to run; `StackSymbols::stable_id` is equal in every run.

/// A call site: a user line by content, or a native location.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct SiteId(pub u32);

/// A distinct pair of Python and native stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(crate) struct StackId(pub u32);
