//! Whose memory: the library that asked the driver.
//!
//! Constraint: every request passes through plumbing (our hook, a CUDA runtime, the driver itself), and a runtime may be
//! linked statically into the library that uses it. Consequence: the owner is the innermost module of the native stack that
//! is not plumbing, by its file name. A stack without a known module has no known owner, and is not given to anybody.

use gpumemtrace_format::NodeId;

use crate::callsite::code_origin::PLUMBING;
use crate::ingest::definitions::Definitions;
use crate::util::seeded_map::SeededMap;

/// An index into [`ModuleOwners::name`]; 0 is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(crate) struct OwnerId(pub u32);

/// Longest stack looked at.
const MAX_FRAMES: usize = 4096;
/// What an owner is called that is not known.
pub(crate) const UNKNOWN: &str = "unknown";

/// All owners met so far.
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
    /// The owner of what was asked for from this native stack.
    pub(crate) fn of(&mut self, stack: NodeId, definitions: &Definitions) -> OwnerId {
        if let Some(known) = self.by_stack.get(&stack) {
            return *known;
        }
        let owner = match module_of(stack, definitions) {
            Some(name) => self.id(name),
            None => OwnerId(0),
        };
        self.by_stack.insert(stack, owner);
        owner
    }

    /// The owner of what was asked for from this native stack, if that was ever asked.
    pub(crate) fn known(&self, stack: NodeId) -> OwnerId {
        self.by_stack.get(&stack).copied().unwrap_or_default()
    }

    fn id(&mut self, name: &str) -> OwnerId {
        if let Some(known) = self.ids.get(name) {
            return *known;
        }
        let id = OwnerId(self.names.len() as u32);
        self.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        id
    }

    /// Its name.
    pub(crate) fn name(&self, owner: OwnerId) -> &str {
        self.names.get(owner.0 as usize).map_or(UNKNOWN, String::as_str)
    }
}

fn module_of(innermost: NodeId, definitions: &Definitions) -> Option<&str> {
    let mut at = innermost;
    for _ in 0..MAX_FRAMES {
        if at == NodeId::NONE {
            return None;
        }
        let node = definitions.native.get(&at)?;
        let module = definitions.module_at(node.return_address.saturating_sub(1));
        let name = module.map(|module| module.path.rsplit('/').next().unwrap_or(&module.path));
        if let Some(name) = name.filter(|name| !PLUMBING.iter().any(|prefix| name.starts_with(prefix))) {
            return Some(name);
        }
        at = node.parent;
    }
    None
}
