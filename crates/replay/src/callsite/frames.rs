//! Call sites and stacks in the form of the report.
//!
//! Everything here runs for the sites that a report shows, after the pass, and allocates strings.

use gpumemtrace_format::source_path::file_name;
use gpumemtrace_format::{FrameLink, NodeId};

use crate::callsite::code_origin::{CodeOrigin, is_simulation_wrapper};
use crate::callsite::site_key::{BACKWARD, MAX_FRAMES, NativeFrame, SiteKey, site_id};
use crate::callsite::symbols::{StackInfo, StackSymbols};
use crate::report::{FrameKind, Site, StackFrame};
use crate::util::ids::{SiteId, StackId};

/// The module of a native frame that PyTorch named without one.
const UNKNOWN_MODULE: &str = "unknown module";

impl StackSymbols {
    /// The node ids of a Python stack, innermost first, and of native frames between them.
    pub(crate) fn python_path(&self, innermost: NodeId) -> Vec<NodeId> {
        let mut path = Vec::new();
        let mut id = innermost;
        while id != NodeId::NONE && path.len() < MAX_FRAMES {
            path.push(id);
            id = self.definitions.python.get(&id).map_or(NodeId::NONE, |node| node.parent);
        }
        path
    }

    /// The node ids of a stack's Python frames, innermost first, without native frames between.
    pub(crate) fn python_frames(&self, innermost: NodeId) -> Vec<NodeId> {
        let is_python = |id: &NodeId| !self.is_native_frame(*id);
        self.python_path(innermost).into_iter().filter(is_python).collect()
    }

    /// True for a native frame in its place between Python frames.
    pub(crate) fn is_native_frame(&self, node: NodeId) -> bool {
        self.definitions.python.get(&node).is_some_and(|node| node.link == FrameLink::Native)
    }

    /// The source file of a frame, if known.
    pub(crate) fn file_of(&self, node: NodeId) -> Option<&str> {
        let node = self.definitions.python.get(&node)?;
        self.definitions.codes.get(&node.code).map(|code| code.file.as_str())
    }

    /// The innermost Python frame of a stack as a site, even if it is not user code.
    pub(crate) fn innermost(&self, stack: StackId) -> SiteId {
        let StackInfo { python, site, .. } = self.stack_info(stack);
        self.nodes.get(python.0).map_or(site, |info| info.own)
    }

    /// The node ids of a native stack, innermost first.
    fn native_path(&self, innermost: NodeId) -> impl Iterator<Item = NodeId> {
        let caller = |id: &NodeId| self.definitions.native.get(id).map(|node| node.parent);
        let path = std::iter::successors(Some(innermost), caller);
        path.take_while(|id| *id != NodeId::NONE).take(MAX_FRAMES)
    }

    /// The frames of a native stack, innermost first.
    pub(crate) fn native_frames(&self, innermost: NodeId) -> Vec<NativeFrame> {
        let mut frames = Vec::new();
        let mut id = innermost;
        while id != NodeId::NONE && frames.len() < MAX_FRAMES {
            let Some(node) = self.definitions.native.get(&id) else {
                frames.push(NativeFrame { address: 0, module: None });
                break;
            };
            let address = node.return_address;
            // The call lies before the return address, which may already be in the next function.
            let module = self.definitions.module_at(address.saturating_sub(1));
            let module = module.map(|module| (module.path.clone(), address.wrapping_sub(module.load_bias)));
            frames.push(NativeFrame { address, module });
            id = node.parent;
        }
        frames
    }

    /// The site in the form of the report. Its stack is that of `stack`; empty for `None`.
    pub(crate) fn site(&self, site: SiteId, stack: Option<StackId>) -> Site {
        let key = &self.sites[site.0 as usize];
        let (file, line, function, module) = match key {
            SiteKey::Python { file, line, function, .. } if self.is_native_site(site) => {
                let file = known_source(file.clone());
                let module = UNKNOWN_MODULE.to_owned();
                (file, line.filter(|line| *line != 0), function.clone(), Some(module))
            }
            SiteKey::Python { file, line, function, .. } => (file.clone(), *line, function.clone(), None),
            SiteKey::Native { module, .. } => (None, None, None, Some(module.clone())),
            SiteKey::Unknown => (None, None, None, None),
        };
        let offset = match key {
            SiteKey::Native { offset, .. } => Some(*offset),
            _ => None,
        };
        let is_backward = matches!(key, SiteKey::Python { is_backward: true, .. });
        let stack = stack.map_or_else(Vec::new, |stack| self.frames(stack));
        let address = self.addresses.get(&site).copied().unwrap_or(0);
        Site {
            id: site_id(key),
            file,
            line,
            function,
            module,
            offset,
            is_backward,
            stack,
            stack_order: None,
            address,
        }
    }

    /// The frame's own line as a site, if it is user code.
    pub(crate) fn own_user_site(&self, node: NodeId) -> Option<SiteId> {
        let info = self.nodes.get(node.0)?;
        (info.user == Some(info.own)).then_some(info.own)
    }

    /// True for the backward pass of a forward line.
    pub(crate) fn is_backward_site(&self, site: SiteId) -> bool {
        matches!(self.sites[site.0 as usize], SiteKey::Python { is_backward: true, .. })
    }

    /// File and function of a Python site.
    pub(crate) fn function_of_site(&self, site: SiteId) -> Option<(&str, &str)> {
        match &self.sites[site.0 as usize] {
            SiteKey::Python { file, function, .. } => Some((file.as_deref()?, function.as_deref()?)),
            SiteKey::Native { .. } | SiteKey::Unknown => None,
        }
    }

    /// The id of a site that is equal in every run.
    pub(crate) fn stable_id(&self, site: SiteId) -> String {
        site_id(&self.sites[site.0 as usize])
    }

    /// The report's form of a site about which nothing is known.
    pub(crate) fn unknown_site() -> Site {
        Site {
            id: site_id(&SiteKey::Unknown),
            file: None,
            line: None,
            function: None,
            module: None,
            offset: None,
            is_backward: false,
            stack: Vec::new(),
            stack_order: None,
            address: 0,
        }
    }

    /// The frames of a stack: first native, then Python frames, each innermost first, as far as
    /// the budget of [`crate::callsite::frame_budget`] reaches.
    /// [`crate::callsite::symbolizer`] merges them into call order.
    pub(crate) fn frames(&self, stack: StackId) -> Vec<StackFrame> {
        let nodes = self.definitions.python.len() + self.definitions.native.len();
        let StackInfo { python, native, .. } = self.stack_info(stack);
        let count = self.python_path(python).len() + self.native_path(native).count();
        self.frame_budget
            .replace(count, nodes)
            .unwrap_or_else(|| self.frame_budget.cut(self.all_frames(stack), nodes))
    }

    fn all_frames(&self, stack: StackId) -> Vec<StackFrame> {
        let StackInfo { python, native, .. } = self.stack_info(stack);
        let mut frames: Vec<StackFrame> = Vec::new();
        let native = self.native_frames(native);
        // The recorder's frames are omitted: they are innermost, and around its autograd hooks.
        for frame in native.into_iter().filter(|frame| !frame.path().is_some_and(is_recorder)) {
            let is_own = frame.path().is_some_and(|path| self.user_code.is_user_module(path));
            let (module, offset) = frame.module.unzip();
            frames.push(StackFrame {
                kind: FrameKind::Native,
                file: None,
                line: None,
                function: None,
                module,
                offset,
                is_inlined: false,
                is_own,
                address: frame.address,
                link: FrameLink::Unknown,
            });
        }
        for id in self.python_path(python) {
            let node = self.definitions.python.get(&id);
            let link = node.map_or(FrameLink::Unknown, |node| node.link);
            let (file, function, line) = match node {
                _ if link == FrameLink::Backward => (None, Some(BACKWARD.to_owned()), None),
                Some(node) => self.python_frame(node.code, node.offset_bytes),
                None => (None, None, None),
            };
            if file.as_deref().is_some_and(is_simulation_wrapper) {
                continue;
            }
            let file = if link == FrameLink::Native { known_source(file) } else { file };
            frames.push(StackFrame {
                kind: if link == FrameLink::Native { FrameKind::Native } else { FrameKind::Python },
                is_own: link != FrameLink::Native
                    && file.as_deref().is_some_and(|file| self.user_code.origin_of(file) == CodeOrigin::User),
                link,
                file,
                line,
                function,
                module: None,
                offset: None,
                is_inlined: false,
                address: 0,
            });
        }
        frames
    }
}

/// The source file of a native frame that PyTorch named; it writes `??` where it is unknown.
fn known_source(file: Option<String>) -> Option<String> {
    file.filter(|file| file != "??")
}

fn is_recorder(path: &str) -> bool {
    file_name(path).starts_with("libgpumemtrace")
}
