//! How Python frames were called by their parents.
//!
//! In a file the links are a block of their own, right after the PY_NODES block whose nodes they
//! belong to: a reader that does not know them loses nothing else. In a ring the link is part of
//! the frame's record.

use super::{PyNode, next_id};
use crate::ids::NodeId;
use crate::wire::{Cursor, WireError, put_varint, zigzag};

/// How a Python frame was called by its parent. A reader takes a number that it does not know for
/// [`FrameLink::Unknown`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum FrameLink {
    /// The recorder did not see how the frame was entered.
    #[default]
    Unknown,
    /// Python called Python: both frames ran in the same interpreter loop.
    Python,
    /// C called Python: the frame ran in an interpreter loop of its own.
    C,
    /// Not a frame, and without code: an autograd thread runs the backward node that the frames
    /// above created in the forward pass.
    Backward,
    /// Not a Python frame, but a native one in its place between Python frames. Its code has no
    /// line table; `first_line` is its line, or 0.
    Native,
    /// Not a frame, and without code: the frames above ran inside a backward node, such as those of
    /// a recomputed forward pass. `offset_bytes` has the bits of the id of that node's
    /// [`FrameLink::Backward`].
    InsideBackward,
}

impl FrameLink {
    const ALL: [Self; 6] =
        [Self::Unknown, Self::Python, Self::C, Self::Backward, Self::Native, Self::InsideBackward];

    /// The number that a trace stores.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The link with this number; [`FrameLink::Unknown`] if this version does not know it.
    pub fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }
}

/// Encodes a FRAME_LINKS payload: `count, (id delta, link:u8)*`.
pub fn encode_frame_links(nodes: &[PyNode]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, nodes.len() as u64);
    let mut previous = 0i64;
    for node in nodes {
        put_varint(&mut out, zigzag(i64::from(node.id.0) - previous));
        previous = i64::from(node.id.0);
        out.push(node.link.number());
    }
    out
}

/// Decodes what [`encode_frame_links`] encodes; rejects unknown links.
#[doc(hidden)]
pub fn decode_frame_links(payload: &[u8]) -> Result<Vec<(NodeId, FrameLink)>, WireError> {
    let mut cursor = Cursor::new(payload);
    let count = cursor.count(2)?;
    let mut links = Vec::with_capacity(count);
    let mut previous = 0i64;
    for _ in 0..count {
        let id = next_id(&mut cursor, &mut previous)?;
        links.push((id, FrameLink::from_number(cursor.byte()?)));
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frame_links_round_trip(rows in vec((any::<u32>(), 0..5u8), 0..40)) {
            let node = |(id, link): &(u32, u8)| PyNode { id: NodeId(*id), link: FrameLink::from_number(*link), ..PyNode::default() };
            let nodes: Vec<PyNode> = rows.iter().map(node).collect();
            let links: Vec<(NodeId, FrameLink)> = nodes.iter().map(|node| (node.id, node.link)).collect();
            prop_assert_eq!(decode_frame_links(&encode_frame_links(&nodes)), Ok(links));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = decode_frame_links(&bytes);
        }
    }

    #[test]
    fn link_of_a_newer_version_is_unknown() {
        assert_eq!(FrameLink::from_number(6), FrameLink::Unknown);
        assert_eq!(decode_frame_links(&[1, 2, 200]), Ok(vec![(NodeId(1), FrameLink::Unknown)]));
    }
}
