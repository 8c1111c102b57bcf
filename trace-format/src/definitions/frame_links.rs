//! How frames of Python came to be under their parents.
//!
//! Constraint: the frames' own blocks are older than this and keep their form. Consequence: it stands in a block of its own, behind
//! the one with the frames, and a reader that does not know it loses nothing else. In a ring it is part of the frame's record.

use crate::defs::{NodeId, PyNode, next_id};
use crate::wire::{Cursor, WireError, put_varint, zigzag};

/// How a frame of Python came to be under its parent. Numbers that a reader does not know are [`Link::Unknown`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum Link {
    /// Nobody noted.
    #[default]
    Unknown,
    /// Called by its parent, within one run of the interpreter's loop.
    Python,
    /// Entered from C, by a run of the loop of its own.
    C,
    /// No frame, and without code: a thread of autograd's works here for the node that the frames above created in the forward pass.
    Backward,
}

impl Link {
    const ALL: [Self; 4] = [Self::Unknown, Self::Python, Self::C, Self::Backward];

    /// The number in a trace.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// What a number in a trace stands for.
    pub fn of_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }
}

/// Encodes the links of nodes: per row id (as a difference), link (one byte).
pub fn encode_links(nodes: &[PyNode]) -> Vec<u8> {
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

/// Decodes [`encode_links`].
pub fn decode_links(payload: &[u8]) -> Result<Vec<(NodeId, Link)>, WireError> {
    let mut cursor = Cursor::new(payload);
    let count = cursor.count(2)?;
    let mut links = Vec::with_capacity(count);
    let mut previous = 0i64;
    for _ in 0..count {
        let id = next_id(&mut cursor, &mut previous)?;
        links.push((id, Link::of_number(cursor.byte()?)));
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
        fn links_come_back(rows in vec((any::<u32>(), 0..4u8), 0..40)) {
            let node = |(id, link): &(u32, u8)| PyNode { id: NodeId(*id), link: Link::of_number(*link), ..PyNode::default() };
            let nodes: Vec<PyNode> = rows.iter().map(node).collect();
            let links: Vec<(NodeId, Link)> = nodes.iter().map(|node| (node.id, node.link)).collect();
            prop_assert_eq!(decode_links(&encode_links(&nodes)), Ok(links));
        }

        #[test]
        fn any_bytes_are_refused_without_panic(bytes: Vec<u8>) {
            let _ = decode_links(&bytes);
        }
    }

    #[test]
    fn a_number_of_the_future_is_unknown() {
        assert_eq!(Link::of_number(4), Link::Unknown);
        assert_eq!(decode_links(&[1, 2, 200]), Ok(vec![(NodeId(1), Link::Unknown)]));
    }
}
