//! The library that owns driver memory: the one that requested it.
//!
//! Every request passes through [`FORWARDING_LIBRARIES`] (our hook, a CUDA runtime, the driver),
//! and a runtime may be linked statically into the library that uses it. The owner is therefore the
//! innermost module of the native stack that is not a forwarding library, by file name. A stack
//! without such a module has the owner [`UNKNOWN`]. Owners are cached by stack, so a request costs
//! one hash lookup.

use gpumemtrace_format::NodeId;
use gpumemtrace_format::source_path::file_name;

use crate::callsite::code_origin::FORWARDING_LIBRARIES;
use crate::ingest::definitions::Definitions;
use crate::util::seeded_map::SeededMap;

/// An index into [`ModuleOwners::name`]; 0 is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(crate) struct OwnerId(pub u32);

/// Limit of the search: a cycle of parents, possible only in a damaged file, ends here.
const MAX_FRAMES: usize = 4096;
/// The name of [`OwnerId`] 0.
pub(crate) const UNKNOWN: &str = "unknown";

/// The owners of all requests so far.
#[derive(Debug)]
pub(crate) struct ModuleOwners {
    names: Vec<String>,
    ids: SeededMap<String, OwnerId>,
    by_stack: SeededMap<NodeId, OwnerId>,
}

impl Default for ModuleOwners {
    fn default() -> Self {
        Self { names: vec![UNKNOWN.to_owned()], ids: SeededMap::default(), by_stack: SeededMap::default() }
    }
}

impl ModuleOwners {
    /// The owner of memory that was requested from this native stack.
    pub(crate) fn owner_of_stack(&mut self, stack: NodeId, definitions: &Definitions) -> OwnerId {
        if let Some(owner) = self.by_stack.get(&stack) {
            return *owner;
        }
        let owner = match owning_module(stack, definitions) {
            Some(name) => self.intern(name),
            None => OwnerId(0),
        };
        self.by_stack.insert(stack, owner);
        owner
    }

    /// The owner from an earlier call of [`Self::owner_of_stack`], else the unknown one.
    pub(crate) fn known(&self, stack: NodeId) -> OwnerId {
        self.by_stack.get(&stack).copied().unwrap_or_default()
    }

    fn intern(&mut self, name: &str) -> OwnerId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = OwnerId(self.names.len() as u32);
        self.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        id
    }

    /// The file name of the owner's module.
    pub(crate) fn name(&self, owner: OwnerId) -> &str {
        self.names.get(owner.0 as usize).map_or(UNKNOWN, String::as_str)
    }
}

/// The file name of the library that requested memory from this native stack.
pub(crate) fn owning_module(innermost: NodeId, definitions: &Definitions) -> Option<&str> {
    let forwards = |name: &str| FORWARDING_LIBRARIES.iter().any(|prefix| name.starts_with(prefix));
    modules(innermost, definitions).flatten().find(|name| !forwards(name))
}

/// True if a library with a file name that begins so is on this native stack.
pub(crate) fn passes_through(innermost: NodeId, definitions: &Definitions, prefix: &str) -> bool {
    modules(innermost, definitions).flatten().any(|name| name.starts_with(prefix))
}

/// The file names of the modules of a native stack, innermost first; `None` where they are unknown.
fn modules(innermost: NodeId, definitions: &Definitions) -> impl Iterator<Item = Option<&str>> {
    let nodes = std::iter::successors(definitions.native.get(&innermost), |node| {
        definitions.native.get(&node.parent)
    });
    nodes.take(MAX_FRAMES).map(|node| {
        let module = definitions.module_at(node.return_address.saturating_sub(1));
        module.map(|module| file_name(&module.path))
    })
}
