//! Joins the stack of a thread that runs Python code inside a backward node with the forward stack
//! of that node.
//!
//! The recorder stores the two stacks and a node that names both ([`FrameLink::InsideBackward`]).
//! Here the frames of the own stack are copied onto the forward stack, under the id of that node,
//! so that everything else sees one stack. A stack with user code that calls `backward()` is
//! complete by itself and stays as it is; reentrant checkpoints call it without user code.
//! `symbols::tests` has cases.

use gpumemtrace_format::{FrameLink, NodeId, PyNode};

use crate::callsite::code_origin::{CodeOrigin, UserCodePaths, is_backward_call};
use crate::callsite::site_key::MAX_FRAMES;
use crate::ingest::definitions::Definitions;
use crate::util::seeded_map::SeededMap;

/// Copied nodes get ids from here on. The recorder counts from 1.
const FIRST_COPY: u32 = 1 << 31;

/// Copies of nodes, by their id and that of the forward stack below them.
#[derive(Debug, Default)]
pub(super) struct BackwardStacks {
    copies: SeededMap<(NodeId, NodeId), NodeId>,
}

impl BackwardStacks {
    /// Joins the stacks of nodes that were added since the last call.
    pub(super) fn join(&mut self, definitions: &mut Definitions, user_code: &UserCodePaths) {
        let is_inside = |node: &&PyNode| node.link == FrameLink::InsideBackward;
        let mut nodes: Vec<PyNode> = definitions.python.values().filter(is_inside).copied().collect();
        nodes.sort_unstable_by_key(|node| node.id);
        for node in nodes {
            let joined = self.join_stacks(node, definitions, user_code);
            // A stack that is not known stays, as an unknown frame.
            let joined = joined.unwrap_or(PyNode { offset_bytes: -1, link: FrameLink::Unknown, ..node });
            definitions.python.insert(node.id, joined);
        }
    }

    /// The innermost frame of the joined stack, with the id of `node`.
    fn join_stacks(
        &mut self,
        node: PyNode,
        definitions: &mut Definitions,
        user_code: &UserCodePaths,
    ) -> Option<PyNode> {
        let forward = NodeId(node.offset_bytes.cast_unsigned());
        let own = own_frames(node.parent, definitions)?;
        let innermost = *own.first()?;
        let codes = || own.iter().filter_map(|frame| definitions.codes.get(&frame.code));
        let is_complete = codes().any(|code| is_backward_call(&code.file, &code.name))
            && codes().any(|code| user_code.origin_of(&code.file) == CodeOrigin::User);
        if is_complete || definitions.python.get(&forward)?.link != FrameLink::Backward {
            return Some(PyNode { id: node.id, ..innermost });
        }
        let mut parent = forward;
        for frame in own[1..].iter().rev() {
            parent = self.copy_frame(*frame, (forward, parent), definitions);
        }
        Some(PyNode { id: node.id, parent, ..innermost })
    }

    /// The copy of a frame on the stack `forward`, whose caller there is `parent`.
    fn copy_frame(
        &mut self,
        frame: PyNode,
        (forward, parent): (NodeId, NodeId),
        definitions: &mut Definitions,
    ) -> NodeId {
        if let Some(known) = self.copies.get(&(frame.id, forward)) {
            return *known;
        }
        let mut id = NodeId(FIRST_COPY.saturating_add(self.copies.len() as u32));
        while definitions.python.contains_key(&id) {
            id = NodeId(id.0.wrapping_add(1));
        }
        definitions.python.insert(id, PyNode { id, parent, ..frame });
        self.copies.insert((frame.id, forward), id);
        id
    }
}

/// The frames of a stack, innermost first; `None` if it has no known end.
fn own_frames(innermost: NodeId, definitions: &Definitions) -> Option<Vec<PyNode>> {
    let mut frames = Vec::new();
    let mut at = innermost;
    while at != NodeId::NONE {
        let frame = definitions.python.get(&at).filter(|_| frames.len() < MAX_FRAMES)?;
        frames.push(*frame);
        at = frame.parent;
    }
    Some(frames)
}
