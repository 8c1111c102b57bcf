//! Definitions of code objects, stack frames, modules and symbol names, by raw id.
//!
//! A definition may follow its first use, and the ring file repeats definitions that are already in
//! a block. [`Definitions`] therefore accepts them in any order and keeps the last one of each id;
//! two definitions of one id differ only in a damaged file. It resolves nothing:
//! [`crate::callsite::symbols`] does. `replay/tests/damage.rs` covers missing definitions.

use std::collections::BTreeMap;

use gpumemtrace_format::reader::Item;
use gpumemtrace_format::ring::RingRecord;
use gpumemtrace_format::{CodeDef, CodeId, ModuleDef, NamedFrame, NativeNode, NodeId, PyNode};

use super::notebook_cells::without_execution_count;
use crate::util::seeded_map::SeededMap;

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
}

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
        self.codes.insert(code.id, code);
    }

    /// Adds a module in place of earlier ones that overlap it: their library was unloaded.
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
            self.modules.remove(&start);
        }
        self.modules.insert(module.start, module);
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
