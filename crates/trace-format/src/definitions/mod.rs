//! What the ids in an event stand for: code objects, stack trees, modules, names of native
//! addresses.
//!
//! An event holds the id of its innermost node; each node is one frame and names its caller. The
//! recorder writes a definition to the ring of the first thread that needs it, before the id
//! becomes visible to other threads. Rings are drained one by one, so in a file a definition may
//! follow its first use: readers resolve ids after they have read everything. Two ids may have
//! equal definitions; readers merge by content.

use crate::ids::{CodeId, NodeId};
use crate::wire::{Cursor, WireError, put_bytes, put_delta, put_varint, unzigzag, zigzag};

mod frame_links;
mod names;

pub use frame_links::{FrameLink, decode_frame_links, encode_frame_links};
pub use names::{AddressNames, ModuleNames, NamedFrame, decode_names, encode_names};

/// Longest text or table in a definition, in bytes. The recorder truncates; the reader refuses
/// more.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// [`PyNode::offset_bytes`] of a frame that has not executed an instruction yet.
pub const FRAME_NOT_STARTED: i32 = -2;

/// A Python code object, as copied from the interpreter's memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CodeDef {
    /// What [`PyNode::code`] refers to.
    pub id: CodeId,
    /// The code object's `co_firstlineno`.
    pub first_line: i32,
    /// Python version whose line-table format `line_table` has: 0x030b for 3.11.
    pub python: u16,
    /// A text or the table was longer than the recorder copies; this is a prefix.
    pub truncated: bool,
    /// The code object's `co_filename`.
    pub file: String,
    /// `co_qualname`, or `co_name` before 3.11.
    pub name: String,
    /// `co_linetable`, undecoded; its format depends on `python`.
    pub line_table: Vec<u8>,
}

/// A Python frame in the stack tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct PyNode {
    /// What an event's `python_stack` and a node's `parent` refer to.
    pub id: NodeId,
    /// The frame that called this one.
    pub parent: NodeId,
    /// The code that the frame runs.
    pub code: CodeId,
    /// Byte offset of the current instruction in the bytecode; -1: unknown, or
    /// [`FRAME_NOT_STARTED`].
    pub offset_bytes: i32,
    /// How the parent called it. Stored in a block of its own: [`encode_frame_links`].
    pub link: FrameLink,
}

/// A native frame in the stack tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct NativeNode {
    /// What an event's `native_stack` and a node's `parent` refer to.
    pub id: NodeId,
    /// The frame that called this one.
    pub parent: NodeId,
    /// Return address, also of the innermost frame: the hook itself is never recorded.
    pub return_address: u64,
}

/// A loaded module: an executable or a shared library.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModuleDef {
    /// Address in memory minus address in the file.
    pub load_bias: u64,
    /// First address of its loaded segments.
    pub start: u64,
    /// One past the last address of its loaded segments.
    pub end: u64,
    /// Path that the loader reports; on some systems empty for the main program.
    pub path: String,
    /// GNU build id; empty if the module has none.
    pub build_id: Vec<u8>,
}

/// Encodes a CODES payload: `count, (id, first_line zigzag, python, truncated:u8, file, name,
/// line_table)*`.
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

/// Decodes what [`encode_codes`] encodes.
#[doc(hidden)]
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

/// Encodes a PY_NODES payload: `count, (id delta, parent, code, offset zigzag)*`. Links are not in
/// it.
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

/// Decodes [`encode_py_nodes`]; every link is [`FrameLink::Unknown`].
#[doc(hidden)]
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
            link: FrameLink::Unknown,
        });
    }
    Ok(nodes)
}

/// Encodes a NATIVE_NODES payload: `count, (id delta, parent, return_address delta)*`.
pub fn encode_native_nodes(nodes: &[NativeNode]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, nodes.len() as u64);
    let (mut previous, mut address) = (0i64, 0u64);
    for node in nodes {
        put_varint(&mut out, zigzag(i64::from(node.id.0) - previous));
        previous = i64::from(node.id.0);
        put_varint(&mut out, u64::from(node.parent.0));
        put_delta(&mut out, address, node.return_address);
        address = node.return_address;
    }
    out
}

/// Decodes what [`encode_native_nodes`] encodes.
#[doc(hidden)]
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

/// Encodes a MODULES payload: `count, (load_bias, start, end, path, build_id)*`. A later block
/// replaces the modules of earlier ones at the same addresses.
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

/// Decodes what [`encode_modules`] encodes.
#[doc(hidden)]
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

fn next_id(cursor: &mut Cursor<'_>, previous: &mut i64) -> Result<NodeId, WireError> {
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
mod tests;
