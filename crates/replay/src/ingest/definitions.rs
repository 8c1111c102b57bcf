//! Definitions of code objects, stack frames, modules and symbol names, by raw id.
//!
//! A definition may follow its first use, and the ring file repeats definitions that are already in
//! a block. [`Definitions`] therefore accepts them in any order and keeps the last one of each id;
//! two definitions of one id differ only in a damaged file. It resolves nothing:
//! [`crate::callsite::symbols`] does. `crates/replay/tests/damage.rs` covers missing definitions.

use std::collections::BTreeMap;

use gpumemtrace_format::reader::Item;
use gpumemtrace_format::ring::RingRecord;
use gpumemtrace_format::{CodeDef, CodeId, ModuleDef, NamedFrame, NativeNode, NodeId, PyNode};

use super::notebook_cells::without_execution_count;
use crate::util::seeded_map::SeededMap;

/// Bytes of a file's or a function's name that are kept; Linux has no longer path. Reports repeat a
/// name for each line, so a long one would cost much more than the trace.
const MAX_NAME_BYTES: usize = 4096;

/// All definitions of a trace.
#[derive(Debug, Default)]
pub struct Definitions {
    /// Code objects, and the names of ranges, marks and phases, which the recorder stores as codes.
    pub codes: SeededMap<CodeId, CodeDef>,
    /// Frames of the Python stack tree.
    pub python: SeededMap<NodeId, PyNode>,
    /// Frames of the native stack tree.
    pub native: SeededMap<NodeId, NativeNode>,
    /// Loaded modules by their first address; they do not overlap.
    pub modules: BTreeMap<u64, ModuleDef>,
    /// Names that `gpumemtrace symbolize` wrote into the file, by build id and address in the file.
    pub names: SeededMap<Vec<u8>, SeededMap<u64, Vec<NamedFrame>>>,
    moved_modules: usize,
    /// The address behind the last moved module.
    next_free: u64,
}

/// Modules that are moved after they were unloaded.
const MAX_MOVED_MODULES: usize = 256;
/// No program has code at these addresses. The recorder moves modules to later ones itself.
const FIRST_FREE_ADDRESS: u64 = 1 << 48;
const END_OF_FREE_ADDRESSES: u64 = 1 << 52;

impl Definitions {
    /// Adds the definitions of `item`; items without definitions are ignored.
    pub(crate) fn add_item(&mut self, item: Item) {
        match item {
            Item::Codes(codes) => codes.into_iter().for_each(|code| self.add_code(code)),
            Item::PyNodes(nodes) => self.python.extend(nodes.into_iter().map(|node| (node.id, node))),
            // A block of links follows the block of their nodes.
            Item::FrameLinks(links) => {
                for (id, link) in links {
                    if let Some(node) = self.python.get_mut(&id) {
                        node.link = link;
                    }
                }
            }
            Item::NativeNodes(nodes) => self.native.extend(nodes.into_iter().map(|node| (node.id, node))),
            Item::Modules(modules) => modules.into_iter().for_each(|module| self.add_module(module)),
            Item::Names(modules) => {
                for module in modules {
                    let names = module.addresses.into_iter().map(|names| (names.address, names.frames));
                    self.names.entry(module.build_id).or_default().extend(names);
                }
            }
            _ => {}
        }
    }

    /// Adds the definition in `record`; events are ignored.
    pub(crate) fn add_record(&mut self, record: &RingRecord) {
        match record {
            RingRecord::Code(code) => {
                self.add_code(code.clone());
            }
            RingRecord::PyNode(node) => {
                self.python.insert(node.id, *node);
            }
            RingRecord::NativeNode(node) => {
                self.native.insert(node.id, *node);
            }
            RingRecord::Event(_) => {}
        }
    }

    fn add_code(&mut self, mut code: CodeDef) {
        if let Some(file) = without_execution_count(&code.file) {
            code.file = file;
        }
        for text in [&mut code.file, &mut code.name] {
            text.truncate(text.floor_char_boundary(MAX_NAME_BYTES));
        }
        self.codes.insert(code.id, code);
    }

    /// Adds a module in place of earlier ones that overlap it: their library was unloaded. Nodes
    /// that are defined already belong to the earlier ones, so both move to other addresses.
    fn add_module(&mut self, module: ModuleDef) {
        if module.end <= module.start {
            return;
        }
        let overlapping: Vec<u64> = self
            .modules
            .range(..module.end)
            .rev()
            .take_while(|(_, old)| old.end > module.start)
            .map(|(start, _)| *start)
            .collect();
        for start in overlapping {
            if let Some(old) = self.modules.remove(&start)
                && (&old.path, &old.build_id, old.load_bias)
                    != (&module.path, &module.build_id, module.load_bias)
            {
                self.move_away(old);
            }
        }
        self.modules.insert(module.start, module);
    }

    /// Moves an unloaded module, and the nodes in it, to addresses that no program has.
    fn move_away(&mut self, module: ModuleDef) {
        // Each move looks at all nodes.
        if self.moved_modules == MAX_MOVED_MODULES {
            return;
        }
        self.moved_modules += 1;
        let start = self.next_free.max(FIRST_FREE_ADDRESS);
        let Some(end) =
            start.checked_add(module.end - module.start).filter(|end| *end < END_OF_FREE_ADDRESSES)
        else {
            return;
        };
        self.next_free = end;
        for node in self.native.values_mut() {
            let offset = node.return_address.wrapping_sub(module.start);
            if offset < module.end - module.start {
                node.return_address = start + offset;
            }
        }
        let load_bias = module.load_bias.wrapping_sub(module.start).wrapping_add(start);
        self.modules.insert(start, ModuleDef { load_bias, start, end, ..module });
    }

    /// The module that contains `address`.
    pub fn module_at(&self, address: u64) -> Option<&ModuleDef> {
        self.modules
            .range(..=address)
            .next_back()
            .map(|(_, module)| module)
            .filter(|module| address < module.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str, start: u64) -> ModuleDef {
        let path = path.to_owned();
        ModuleDef { load_bias: start, start: start + 0x1000, end: start + 0x3000, path, build_id: Vec::new() }
    }

    #[test]
    fn nodes_keep_the_module_that_was_loaded_when_they_were_defined() {
        let mut definitions = Definitions::default();
        let add_node = |definitions: &mut Definitions, id| {
            let node = NativeNode { id: NodeId(id), parent: NodeId::NONE, return_address: 0x7_1234 };
            definitions.add_item(Item::NativeNodes(vec![node]));
        };
        let generations = ["a.so", "b.so", "c.so"];
        for (id, path) in (1..).zip(generations) {
            // The list is repeated as it is when any other module changes.
            for _ in 0..2 {
                definitions
                    .add_item(Item::Modules(vec![module(path, 0x7_0000), module("libc.so", 0x9_0000)]));
            }
            add_node(&mut definitions, id);
        }
        for (id, path) in (1..).zip(generations) {
            let address = definitions.native[&NodeId(id)].return_address;
            let found = definitions.module_at(address).unwrap();
            assert_eq!((found.path.as_str(), address - found.load_bias), (path, 0x1234));
        }
        assert_eq!(definitions.modules.len(), 4);
    }

    #[test]
    fn changing_modules_without_end_take_bounded_memory() {
        let mut definitions = Definitions::default();
        for number in 0..10_000 {
            definitions.add_item(Item::Modules(vec![module(&number.to_string(), 0x7_0000)]));
        }
        assert_eq!(definitions.modules.len(), MAX_MOVED_MODULES + 1);
    }
}
