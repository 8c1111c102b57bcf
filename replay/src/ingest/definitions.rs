//! What the ids in events stand for, collected from blocks and ring alike.
//!
//! Constraint: a definition may lie behind its first use and an id may be defined twice. Consequence: everything is kept by
//! raw id, in any order, the last definition wins (they are equal unless the file is damaged), and nothing is resolved here.

use std::collections::BTreeMap;

use gpumemtrace_format::reader::Item;
use gpumemtrace_format::ring::RingRecord;
use gpumemtrace_format::{CodeDef, CodeId, ModuleDef, NamedFrame, NativeNode, NodeId, PyNode};

use crate::util::seeded_map::SeededMap;

/// All definitions of a trace.
#[derive(Debug, Default)]
pub struct Definitions {
    /// Code objects.
    pub codes: SeededMap<CodeId, CodeDef>,
    /// Frames of the Python stack tree.
    pub python: SeededMap<NodeId, PyNode>,
    /// Frames of the native stack tree.
    pub native: SeededMap<NodeId, NativeNode>,
    /// Loaded modules by their first address.
    pub modules: BTreeMap<u64, ModuleDef>,
    /// What `symbolize` wrote into the file: names by build id and address.
    pub names: SeededMap<Vec<u8>, SeededMap<u64, Vec<NamedFrame>>>,
}

impl Definitions {
    /// Takes what an item defines; other items are left alone.
    pub(crate) fn take(&mut self, item: Item) {
        match item {
            Item::Codes(codes) => self.codes.extend(codes.into_iter().map(|code| (code.id, code))),
            Item::PyNodes(nodes) => self.python.extend(nodes.into_iter().map(|node| (node.id, node))),
            // They stand behind the nodes that they are of.
            Item::FrameLinks(links) => {
                for (id, link) in links {
                    if let Some(node) = self.python.get_mut(&id) {
                        node.link = link;
                    }
                }
            }
            Item::NativeNodes(nodes) => self.native.extend(nodes.into_iter().map(|node| (node.id, node))),
            Item::Modules(modules) => modules.into_iter().for_each(|module| self.take_module(module)),
            Item::Names(modules) => {
                for module in modules {
                    let names = module.addresses.into_iter().map(|names| (names.address, names.frames));
                    self.names.entry(module.build_id).or_default().extend(names);
                }
            }
            _ => {}
        }
    }

    /// Takes what a ring record defines.
    pub(crate) fn take_record(&mut self, record: &RingRecord) {
        match record {
            RingRecord::Code(code) => {
                self.codes.insert(code.id, code.clone());
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

    /// A later list of modules replaces what earlier ones said about the same addresses.
    fn take_module(&mut self, module: ModuleDef) {
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

    /// The module that holds an address.
    pub fn module_at(&self, address: u64) -> Option<&ModuleDef> {
        self.modules
            .range(..=address)
            .next_back()
            .map(|(_, module)| module)
            .filter(|module| address < module.end)
    }
}
