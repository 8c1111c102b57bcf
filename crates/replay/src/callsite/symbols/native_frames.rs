//! Native frames between Python frames, as snapshots of PyTorch have them.

use gpumemtrace_format::{NodeId, PyNode};

use super::{AutogradRole, FrameNode, NodeInfo, StackSymbols};
use crate::callsite::code_origin::forwards_allocation;
use crate::callsite::site_key::SiteKey;
use crate::callsite::stack_root::StackRoot;
use crate::util::ids::SiteId;

impl StackSymbols {
    /// The info of a native frame in its place between Python frames: that of its caller, which
    /// names a line of the program. Without one, the site is the innermost frame that does more
    /// than forward the request.
    pub(super) fn native_info(&mut self, id: NodeId, node: &PyNode, caller: Option<NodeInfo>) -> NodeInfo {
        let has_python = caller.is_some_and(|caller| !self.is_native_site(caller.own));
        let (file, function, line) = self.python_frame(node.code, node.offset_bytes);
        let forwards = function.as_deref().is_some_and(forwards_allocation);
        if let Some(caller) = caller.filter(|_| has_python || forwards) {
            return caller;
        }
        if function.is_none() {
            self.unresolved.insert(FrameNode::Python(id));
        }
        let own = self.intern_site(SiteKey::Python { file, line, function, is_backward: false });
        self.native_sites.insert(own);
        let root = caller.map_or(StackRoot::MODULE, |caller| caller.root);
        NodeInfo { user: None, generated: None, own, optimizer: 0, root, autograd: AutogradRole::None }
    }

    /// True for a site in native code that PyTorch named, in a snapshot.
    pub(in crate::callsite) fn is_native_site(&self, site: SiteId) -> bool {
        self.native_sites.contains(&site)
    }
}
