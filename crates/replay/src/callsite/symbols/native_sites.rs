//! The sites of stacks without Python frames.
//!
//! A program may have millions of distinct native stacks, which share their outer frames. So what
//! is known of a frame and its callers is kept for each node of the tree: a new stack costs only
//! its new frames.

use gpumemtrace_format::NodeId;

use super::{FrameNode, StackSymbols};
use crate::callsite::code_origin::only_forwards_requests;
use crate::callsite::site_key::{MAX_FRAMES, SiteKey};
use crate::util::dense_map::DenseMap;
use crate::util::ids::SiteId;
use crate::util::seeded_map::SeededMap;

/// The frames that may be the site of a stack, by its innermost node.
#[derive(Debug, Default)]
pub(super) struct NativeCallers {
    frames: DenseMap<SiteFrames>,
    /// What a module is, by its first address.
    modules: SeededMap<u64, (String, ModuleRole)>,
}

/// The innermost frames of a stack of each kind; [`NodeId::NONE`] if there is none.
#[derive(Clone, Copy, Debug)]
struct SiteFrames {
    in_user_module: NodeId,
    /// In a module that does more than forward requests.
    in_other_module: NodeId,
}

const NO_FRAMES: SiteFrames = SiteFrames { in_user_module: NodeId::NONE, in_other_module: NodeId::NONE };

#[derive(Clone, Copy, Debug)]
struct ModuleRole {
    is_user_module: bool,
    forwards_requests: bool,
}

impl StackSymbols {
    /// The site of a stack without Python frames: its innermost frame in a user module, else in one
    /// that does more than forward requests, else its innermost frame.
    pub(super) fn native_site(&mut self, native: NodeId) -> SiteId {
        let frames = self.site_frames(native);
        let chosen = [frames.in_user_module, frames.in_other_module, native];
        let chosen = chosen.into_iter().find(|node| *node != NodeId::NONE).unwrap_or(NodeId::NONE);
        let address = self.definitions.native.get(&chosen).map(|node| node.return_address);
        let module = address.and_then(|address| self.definitions.module_at(address.saturating_sub(1)));
        let (Some(address), Some(module)) = (address, module) else {
            return self.intern_site(SiteKey::Unknown);
        };
        let offset = address.wrapping_sub(module.load_bias);
        let key = SiteKey::Native { module: module.path.clone(), offset };
        let site = self.intern_site(key);
        self.addresses.entry(site).or_insert(address);
        site
    }

    /// The frames of a stack that may be its site. Iterative: a hostile file may define any depth.
    fn site_frames(&mut self, innermost: NodeId) -> SiteFrames {
        let mut new = Vec::new();
        let mut next = innermost;
        let mut frames = loop {
            if next == NodeId::NONE || new.len() >= MAX_FRAMES {
                break NO_FRAMES;
            }
            if let Some(known) = self.native_callers.frames.get(next.0) {
                break known;
            }
            new.push(next);
            next = self.definitions.native.get(&next).map_or(NodeId::NONE, |node| node.parent);
        };
        for node in new.into_iter().rev() {
            match self.module_role(node) {
                Some(ModuleRole { is_user_module: true, .. }) => {
                    frames = SiteFrames { in_user_module: node, in_other_module: node };
                }
                Some(ModuleRole { forwards_requests: false, .. }) => frames.in_other_module = node,
                _ => {}
            }
            self.native_callers.frames.insert(node.0, frames);
        }
        frames
    }

    /// The role of a frame's module. `None`, and counted, if it is unknown.
    fn module_role(&mut self, node: NodeId) -> Option<ModuleRole> {
        let Some(address) = self.definitions.native.get(&node).map(|node| node.return_address) else {
            self.mark_undefined(FrameNode::Native(node));
            return None;
        };
        // The call lies before the return address, which may already be in the next function.
        let Some(module) = self.definitions.module_at(address.saturating_sub(1)) else {
            self.unresolved.insert(FrameNode::Native(node));
            return None;
        };
        // While a program runs, a library may take the addresses of one that was unloaded.
        let known = self.native_callers.modules.get(&module.start).filter(|known| known.0 == module.path);
        if let Some((_, role)) = known {
            return Some(*role);
        }
        let role = ModuleRole {
            is_user_module: self.user_code.is_user_module(&module.path),
            forwards_requests: only_forwards_requests(&module.path),
        };
        self.native_callers.modules.insert(module.start, (module.path.clone(), role));
        Some(role)
    }
}
