//! Stacks as nodes of a tree, and their frames as code objects.
//!
//! A snapshot has the line of a frame, and a trace the offset of its instruction. So the code
//! object of a function has one instruction for each of its lines that occurs, in ascending order,
//! and a line table that leads back to them. Lines are complete only after the last event, so all
//! definitions follow the events.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpumemtrace_format::block::BlockKind;
use gpumemtrace_format::definitions::{encode_codes, encode_frame_links, encode_py_nodes};
use gpumemtrace_format::source_path::file_name;
use gpumemtrace_format::{CodeDef, CodeId, FRAME_NOT_STARTED, FrameLink, NodeId, PyNode};

use super::trace_writer::TraceWriter;
use crate::values::{TextId, TorchFrame, TorchSnapshot, TorchStack, is_backward_mark, is_python};

/// The code objects have line tables of this Python version.
const PYTHON_3_11: u16 = 0x030b;
/// Lines of one code object: a reader searches its table for each frame.
const MAX_LINES: usize = 256;
const NODES_PER_BLOCK: usize = 1 << 18;
const CODES_PER_BLOCK: usize = 64;

/// Numbers the nodes of the stacks that events have.
#[derive(Debug)]
pub(super) struct StackTree {
    nodes: HashMap<(NodeId, TorchFrame), NodeId>,
    /// Parent and frame of each node; the first node has id 1.
    rows: Vec<(NodeId, TorchFrame)>,
    by_stack: HashMap<TorchStack, NodeId>,
    names: BTreeMap<String, CodeId>,
}

impl StackTree {
    pub(super) fn new() -> Self {
        Self { nodes: HashMap::new(), rows: Vec::new(), by_stack: HashMap::new(), names: BTreeMap::new() }
    }

    /// The innermost node of a stack.
    pub(super) fn node(&mut self, stack: Option<TorchStack>, snapshot: &TorchSnapshot) -> NodeId {
        let Some(stack) = stack else { return NodeId::NONE };
        if let Some(known) = self.by_stack.get(&stack) {
            return *known;
        }
        let mut at = NodeId::NONE;
        for frame in snapshot.stacks.frames(stack).rev() {
            let next = NodeId(self.rows.len() as u32 + 1);
            let node = *self.nodes.entry((at, frame)).or_insert(next);
            if node == next {
                self.rows.push((at, frame));
            }
            at = node;
        }
        self.by_stack.insert(stack, at);
        at
    }

    /// The id of a text.
    pub(super) fn name(&mut self, name: &str) -> CodeId {
        let next = CodeId(self.names.len() as u32 + 1);
        *self.names.entry(name.to_owned()).or_insert(next)
    }

    /// The definitions of everything that was numbered.
    pub(super) fn finish(self, snapshot: &TorchSnapshot) -> StackDefinitions {
        let mut codes: Vec<CodeDef> =
            self.names.into_iter().map(|(name, id)| CodeDef { id, name, ..CodeDef::default() }).collect();
        let frames = define_codes(&mut codes, &self.rows, snapshot);
        let nodes = define_nodes(&frames, &self.rows, snapshot);
        StackDefinitions { codes, nodes }
    }
}

/// Where frames are in the code objects of the trace.
#[derive(Default)]
struct FramePlaces {
    /// By file, function and line: the code object, and the offset in it.
    places: HashMap<(TextId, TextId, u32), (CodeId, i32)>,
    /// Code objects of native frames.
    native: BTreeSet<CodeId>,
    /// File and function of marks of the backward pass, which have no code object.
    marks: BTreeSet<(TextId, TextId)>,
}

/// Adds a code object for each function of the frames in `rows`.
fn define_codes(
    codes: &mut Vec<CodeDef>,
    rows: &[(NodeId, TorchFrame)],
    snapshot: &TorchSnapshot,
) -> FramePlaces {
    let mut next_code = codes.len() as u32 + 1;
    // Lines by function, of the frames in use.
    let mut functions: BTreeMap<(TextId, TextId), BTreeSet<u32>> = BTreeMap::new();
    for (_, frame) in rows {
        let frame = snapshot.stacks.frame(*frame);
        functions.entry((frame.file, frame.name)).or_default().insert(frame.line);
    }
    let mut frames = FramePlaces::default();
    for ((file, name), lines) in functions {
        let (file_text, name_text) = (snapshot.texts.get(file), snapshot.texts.get(name));
        if is_backward_mark(file_text, name_text) {
            frames.marks.insert((file, name));
            continue;
        }
        let is_native = !is_python(file_text, name_text);
        let lines: Vec<u32> = lines.into_iter().collect();
        for lines in lines.chunks(if is_native { 1 } else { MAX_LINES }) {
            let id = CodeId(next_code);
            next_code += 1;
            // Of a frame without line numbers, PyTorch reports the offset in its library.
            let has_lines = !(is_native && is_library(file_text));
            let first_line = i32::try_from(lines[0]).ok().filter(|_| has_lines).unwrap_or(0);
            let mut code = CodeDef {
                id,
                first_line,
                file: file_text.to_owned(),
                name: name_text.to_owned(),
                ..CodeDef::default()
            };
            if is_native {
                frames.native.insert(id);
                frames.places.insert((file, name, lines[0]), (id, FRAME_NOT_STARTED));
            } else {
                code.python = PYTHON_3_11;
                code.line_table = line_table(lines);
                for (offset, line) in (0..).step_by(2).zip(lines) {
                    frames.places.insert((file, name, *line), (id, offset));
                }
            }
            codes.push(code);
        }
    }
    frames
}

/// The nodes of all rows, which are numbered from 1.
fn define_nodes(
    frames: &FramePlaces,
    rows: &[(NodeId, TorchFrame)],
    snapshot: &TorchSnapshot,
) -> Vec<PyNode> {
    let mut nodes: Vec<PyNode> = Vec::with_capacity(rows.len());
    for (id, (parent, frame)) in (1..).zip(rows) {
        let frame = snapshot.stacks.frame(*frame);
        let place = frames.places.get(&(frame.file, frame.name, frame.line));
        let (code, offset_bytes) = place.copied().unwrap_or((CodeId::UNKNOWN, -1));
        let is_called_from_python = parent
            .0
            .checked_sub(1)
            .and_then(|parent| nodes.get(parent as usize))
            .is_some_and(|parent| !matches!(parent.link, FrameLink::Native | FrameLink::Backward));
        let link = match (frames.native.contains(&code), is_called_from_python) {
            _ if frames.marks.contains(&(frame.file, frame.name)) => FrameLink::Backward,
            (true, _) => FrameLink::Native,
            (false, true) => FrameLink::Python,
            (false, false) => FrameLink::C,
        };
        nodes.push(PyNode { id: NodeId(id), parent: *parent, code, offset_bytes, link });
    }
    nodes
}

/// The definitions of a trace.
#[derive(Debug)]
pub(super) struct StackDefinitions {
    codes: Vec<CodeDef>,
    nodes: Vec<PyNode>,
}

impl StackDefinitions {
    pub(super) fn add_to(&self, writer: &mut TraceWriter) {
        for codes in self.codes.chunks(CODES_PER_BLOCK) {
            writer.add_definitions(BlockKind::CODES, &encode_codes(codes));
        }
        for nodes in self.nodes.chunks(NODES_PER_BLOCK) {
            writer.add_definitions(BlockKind::PY_NODES, &encode_py_nodes(nodes));
            writer.add_definitions(BlockKind::FRAME_LINKS, &encode_frame_links(nodes));
        }
    }
}

/// True for a shared library or an executable, as opposed to a source file.
fn is_library(file: &str) -> bool {
    let name = file_name(file);
    name.contains(".so")
        || !["c", "cc", "cpp", "cu", "cuh", "cxx", "h", "hpp", "pyx"]
            .iter()
            .any(|ending| name.rsplit_once('.').is_some_and(|(_, extension)| extension == *ending))
}

/// A line table of Python 3.11 with one code unit for each line, ascending from the first.
fn line_table(lines: &[u32]) -> Vec<u8> {
    // Entry of one unit without columns.
    const NO_COLUMNS: u8 = 0x80 | 13 << 3;
    let mut table = Vec::new();
    let mut line = lines.first().copied().unwrap_or(0);
    for next in lines {
        table.push(NO_COLUMNS);
        // A signed number: the sign is the lowest bit; six bits a byte, lowest first.
        let mut rest = u64::from(next - line) << 1;
        while rest > 0x3f {
            table.push(0x40 | (rest & 0x3f) as u8);
            rest >>= 6;
        }
        table.push(rest as u8);
        line = *next;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_table_has_one_unit_for_each_line() {
        assert_eq!(line_table(&[7, 9]), [0xe8, 0, 0xe8, 4]);
        assert_eq!(line_table(&[1, 101]), [0xe8, 0, 0xe8, 0x40 | 8, 3]);
    }
}
