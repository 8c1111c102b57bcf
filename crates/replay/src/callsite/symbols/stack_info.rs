//! What is known of a stack, and of each Python frame in it.

use gpumemtrace_format::NodeId;

use crate::callsite::call_context::CallContext;
use crate::callsite::stack_root::StackRoot;
use crate::util::ids::{SiteId, StackId};

/// A stack and its site.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackSite {
    pub stack: StackId,
    pub site: SiteId,
    /// What the program was doing.
    pub context: CallContext,
}

/// A Python node with everything that its callers determine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeInfo {
    /// The innermost frame in user code, of this node and its callers.
    pub(crate) user: Option<SiteId>,
    /// The innermost frame in generated code.
    pub(super) generated: Option<SiteId>,
    /// The node's own line.
    pub(crate) own: SiteId,
    /// Index in `optimizer_lines`, plus 1; 0 for none.
    pub(super) optimizer: u16,
    pub(super) root: StackRoot,
    pub(super) autograd: AutogradRole,
}

/// The relation of a Python stack to autograd's engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AutogradRole {
    /// The stack neither runs the engine nor belongs to one of its threads.
    None,
    /// The frame with this node runs the engine and waits for its threads.
    Runs(NodeId),
    /// The stack is that of a forward line for which an engine thread works.
    WorksFor,
}

impl NodeInfo {
    pub(super) fn site(&self) -> SiteId {
        self.user.or(self.generated).unwrap_or(self.own)
    }
}

/// The resolved form of a stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackInfo {
    /// Innermost Python frame; `NONE` without Python frames.
    pub python: NodeId,
    /// Innermost native frame; `NONE` without native frames.
    pub native: NodeId,
    /// The call site: the user line, or its fallback.
    pub site: SiteId,
    /// Index in [`super::StackSymbols::optimizer_lines`], plus 1; 0 for none.
    pub optimizer: u16,
    /// What the stack says about steps: [`RECURRING`](super::RECURRING), or else `optimizer`.
    pub step_hint: u16,
    /// The outermost Python frame.
    pub root: StackRoot,
    /// Relation to autograd's engine.
    pub autograd: AutogradRole,
    /// What the program was doing.
    pub context: CallContext,
}

impl StackInfo {
    /// The stack with this form, with what a live set needs of it.
    #[inline]
    pub(crate) fn origin(self, stack: StackId) -> StackSite {
        StackSite { stack, site: self.site, context: self.context }
    }
}
