//! What the ids in an event mean: code objects, stack trees, modules.
//!
//! Constraint: the hook may only write raw ids, and each definition must be in the trace if any event that uses it is.
//! Consequence: a definition goes into the ring of the thread that first saw the thing, before its id becomes visible to
//! any other thread. A file may still hold it *after* its first use (threads are drained one by one), so a reader resolves
//! ids when it has read everything. The same thing may be defined twice under two ids: readers merge by content.
//!
//! A stack is a path in a tree: each node is one frame and names its parent, the frame that called it. An event holds the
//! id of its innermost node. Python and native frames are two separate trees.

use crate::links::Link;
use crate::wire::{Cursor, WireError, put_bytes, put_varint, unzigzag, zigzag};

/// A node of a stack tree. [`NodeId::NONE`] is "no frame": the parent of an outermost frame, the stack of an event without.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct NodeId(pub u32);

impl NodeId {
    /// No frame.
    pub const NONE: Self = Self(0);
}

/// A Python code object. [`CodeId::UNKNOWN`] is a frame whose code could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct CodeId(pub u32);

impl CodeId {
    /// A frame was there; what it ran could not be read.
    pub const UNKNOWN: Self = Self(0);
}

/// A Python code object, as copied from the interpreter's memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CodeDef {
    /// Its id.
    pub id: CodeId,
    /// `co_firstlineno`.
    pub first_line: i32,
    /// Python version whose line-table format `line_table` has: 0x030b for 3.11.
    pub python: u16,
    /// True when a text or the table was longer than the recorder copies; what is here is a prefix.
    pub truncated: bool,
    /// `co_filename`.
    pub file: String,
    /// `co_qualname`, or `co_name` before 3.11.
    pub name: String,
    /// `co_linetable` (`co_lnotab` before 3.10), undecoded.
    pub line_table: Vec<u8>,
}

/// A Python frame in the stack tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct PyNode {
    /// Its id.
    pub id: NodeId,
    /// The frame that called it.
    pub parent: NodeId,
    /// What it runs.
    pub code: CodeId,
    /// Byte offset of the current instruction from the start of the bytecode; -1 when unknown, [`NOT_BEGUN`] before the first.
    pub offset_bytes: i32,
    /// How it came to be under its parent. In blocks of their own: [`crate::links`].
    pub link: Link,
}

/// [`PyNode::offset_bytes`] of a frame that has not executed anything yet.
pub const NOT_BEGUN: i32 = -2;

/// A native frame in the stack tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct NativeNode {
    /// Its id.
    pub id: NodeId,
    /// The frame that called it.
    pub parent: NodeId,
    /// Return address (for the innermost frame too: the hook is never the frame of interest).
    pub return_address: u64,
}

/// A loaded module (executable or shared library).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModuleDef {
    /// Difference between addresses in memory and in the file.
    pub load_bias: u64,
    /// First address of its loaded segments.
    pub start: u64,
    /// One past the last address of its loaded segments.
    pub end: u64,
    /// Path as the loader knows it; empty for the main program on some systems.
    pub path: String,
    /// GNU build id, empty when the module has none.
    pub build_id: Vec<u8>,
}

/// Longest text or table a definition may hold, in bytes. The recorder cuts before; the reader refuses more.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// Encodes code definitions: per row id, first line (zigzag), python, truncated, file, name, line table.
pub fn encode_codes(codes: &[CodeDef]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, codes.len() as u64);
    for code in codes {
        put_varint(&mut out, u64::from(code.id.0));
        put_varint(&mut out, zigzag(i64::from(code.first_line)));
        put_varint(&mut out, u64::from(code.python));
        out.push(u8::from(code.truncated));
        put_bytes(&mut out, code.file.as_bytes());
        put_bytes(&mut out, code.name.as_bytes());
        put_bytes(&mut out, &code.line_table);
    }
    out
}

/// Decodes [`encode_codes`].
pub fn decode_codes(payload: &[u8]) -> Result<Vec<CodeDef>, WireError> {
    let mut cursor = Cursor::new(payload);
    let mut codes = Vec::new();
    for _ in 0..cursor.count(7)? {
        codes.push(CodeDef {
            id: CodeId(cursor.varint_u32()?),
            first_line: i32::try_from(unzigzag(cursor.varint()?)).map_err(|_| WireError::Range)?,
            python: u16::try_from(cursor.varint()?).map_err(|_| WireError::Range)?,
            truncated: cursor.byte()? != 0,
            file: limited_text(&mut cursor)?,
            name: limited_text(&mut cursor)?,
            line_table: limited_bytes(&mut cursor)?.to_vec(),
        });
    }
    Ok(codes)
}

/// Encodes Python nodes: per row id (as a difference), parent, code, offset (zigzag).
pub fn encode_py_nodes(nodes: &[PyNode]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, nodes.len() as u64);
    let mut previous = 0i64;
    for node in nodes {
        put_varint(&mut out, zigzag(i64::from(node.id.0) - previous));
        previous = i64::from(node.id.0);
        put_varint(&mut out, u64::from(node.parent.0));
        put_varint(&mut out, u64::from(node.code.0));
        put_varint(&mut out, zigzag(i64::from(node.offset_bytes)));
    }
    out
}

/// Decodes [`encode_py_nodes`].
pub fn decode_py_nodes(payload: &[u8]) -> Result<Vec<PyNode>, WireError> {
    let mut cursor = Cursor::new(payload);
    let count = cursor.count(4)?;
    let mut nodes = Vec::with_capacity(count);
    let mut previous = 0i64;
    for _ in 0..count {
        let id = next_id(&mut cursor, &mut previous)?;
        nodes.push(PyNode {
            id,
            parent: NodeId(cursor.varint_u32()?),
            code: CodeId(cursor.varint_u32()?),
            offset_bytes: i32::try_from(unzigzag(cursor.varint()?)).map_err(|_| WireError::Range)?,
            link: Link::Unknown,
        });
    }
    Ok(nodes)
}

/// Encodes native nodes: per row id (as a difference), parent, return address (as a difference).
pub fn encode_native_nodes(nodes: &[NativeNode]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, nodes.len() as u64);
    let (mut previous, mut address) = (0i64, 0u64);
    for node in nodes {
        put_varint(&mut out, zigzag(i64::from(node.id.0) - previous));
        previous = i64::from(node.id.0);
        put_varint(&mut out, u64::from(node.parent.0));
        crate::wire::put_delta(&mut out, address, node.return_address);
        address = node.return_address;
    }
    out
}

/// Decodes [`encode_native_nodes`].
pub fn decode_native_nodes(payload: &[u8]) -> Result<Vec<NativeNode>, WireError> {
    let mut cursor = Cursor::new(payload);
    let count = cursor.count(3)?;
    let mut nodes = Vec::with_capacity(count);
    let (mut previous, mut address) = (0i64, 0u64);
    for _ in 0..count {
        let id = next_id(&mut cursor, &mut previous)?;
        let parent = NodeId(cursor.varint_u32()?);
        address = cursor.delta(address)?;
        nodes.push(NativeNode { id, parent, return_address: address });
    }
    Ok(nodes)
}

/// Encodes the list of loaded modules. Each MODULES block replaces what earlier ones said about the same addresses.
pub fn encode_modules(modules: &[ModuleDef]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, modules.len() as u64);
    for module in modules {
        put_varint(&mut out, module.load_bias);
        put_varint(&mut out, module.start);
        put_varint(&mut out, module.end);
        put_bytes(&mut out, module.path.as_bytes());
        put_bytes(&mut out, &module.build_id);
    }
    out
}

/// Decodes [`encode_modules`].
pub fn decode_modules(payload: &[u8]) -> Result<Vec<ModuleDef>, WireError> {
    let mut cursor = Cursor::new(payload);
    let mut modules = Vec::new();
    for _ in 0..cursor.count(4)? {
        modules.push(ModuleDef {
            load_bias: cursor.varint()?,
            start: cursor.varint()?,
            end: cursor.varint()?,
            path: limited_text(&mut cursor)?,
            build_id: limited_bytes(&mut cursor)?.to_vec(),
        });
    }
    Ok(modules)
}

pub(crate) fn next_id(cursor: &mut Cursor<'_>, previous: &mut i64) -> Result<NodeId, WireError> {
    *previous = previous.checked_add(unzigzag(cursor.varint()?)).ok_or(WireError::Range)?;
    Ok(NodeId(u32::try_from(*previous).map_err(|_| WireError::Range)?))
}

fn limited_bytes<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], WireError> {
    let bytes = cursor.bytes()?;
    if bytes.len() > MAX_TEXT_BYTES { Err(WireError::Limit) } else { Ok(bytes) }
}

fn limited_text(cursor: &mut Cursor<'_>) -> Result<String, WireError> {
    let bytes = limited_bytes(cursor)?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| WireError::NotUtf8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn definitions_come_back(
            codes in vec((any::<u32>(), any::<i32>(), any::<u16>(), any::<bool>(), ".{0,20}", ".{0,20}", vec(any::<u8>(), 0..40)), 0..8),
            nodes in vec((any::<u32>(), any::<u32>(), any::<u32>(), any::<i32>(), any::<u64>()), 0..40),
        ) {
            let codes: Vec<CodeDef> = codes.into_iter().map(|(id, first_line, python, truncated, file, name, line_table)| {
                CodeDef { id: CodeId(id), first_line, python, truncated, file, name, line_table }
            }).collect();
            prop_assert_eq!(decode_codes(&encode_codes(&codes)), Ok(codes));
            let py: Vec<PyNode> = nodes.iter().map(|n| PyNode { id: NodeId(n.0), parent: NodeId(n.1), code: CodeId(n.2), offset_bytes: n.3, link: Link::Unknown }).collect();
            prop_assert_eq!(decode_py_nodes(&encode_py_nodes(&py)), Ok(py));
            let native: Vec<NativeNode> = nodes.iter().map(|n| NativeNode { id: NodeId(n.0), parent: NodeId(n.1), return_address: n.4 }).collect();
            prop_assert_eq!(decode_native_nodes(&encode_native_nodes(&native)), Ok(native));
        }

        #[test]
        fn any_bytes_are_refused_without_panic(bytes: Vec<u8>) {
            let _ = decode_codes(&bytes);
            let _ = decode_py_nodes(&bytes);
            let _ = decode_native_nodes(&bytes);
            let _ = decode_modules(&bytes);
        }
    }

    #[test]
    fn modules_come_back() {
        let modules = vec![ModuleDef {
            load_bias: 0x7f00_0000_0000,
            start: 0x7f00_0000_1000,
            end: 0x7f00_0010_0000,
            path: "/usr/lib/libc.so.6".into(),
            build_id: vec![1; 20],
        }];
        assert_eq!(decode_modules(&encode_modules(&modules)), Ok(modules));
    }
}
