//! Modules that the program has unloaded, so that their frames keep their names.
//!
//! The loader gives the addresses of an unloaded module to the next one. Nodes that a thread has
//! captured before may still wait in its ring then, and the trace has one module for each address.
//! So the `dlclose` hook notes which modules are gone. Each node has the number of unloads before
//! it; the writer moves the nodes of an unloaded module, with the module, to addresses that no
//! program has.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use gpumemtrace_format::{ModuleDef, NativeNode};

use super::{Session, current};
use crate::config::NativeStacks;
use crate::platform;
use crate::platform::free_memory::has_memory_left;
use crate::platform::unload_counter::{note_unloaded_modules, unloads};

/// Where unloaded modules are moved to: no processor has addresses there. Readers move modules to
/// 1 << 48 on.
const FIRST_ADDRESS: u64 = 1 << 52;
/// Unloaded modules that are kept. A program that loads and unloads without end keeps the first.
const MAX_MODULES: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct UnloadedModules {
    /// Number of modules in `list`, for readers without the lock.
    len: AtomicU32,
    list: Mutex<Vec<UnloadedModule>>,
}

#[derive(Debug)]
struct UnloadedModule {
    /// The module at its former addresses.
    module: ModuleDef,
    /// The last number of unloads that nodes of this module may have.
    unloads: u32,
    moved_to: u64,
    is_written: bool,
}

impl UnloadedModules {
    /// Adds modules that are gone since the number of unloads was `since`, and counts the unload.
    /// Two threads may have seen one module go; the first one adds it.
    fn add(&self, modules: Vec<ModuleDef>, since: u32) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let unloads = unloads();
        for module in modules {
            if list.len() == MAX_MODULES {
                break;
            }
            if list.iter().any(|known| known.unloads >= since && known.module == module) {
                continue;
            }
            let last = list
                .last()
                .map_or(FIRST_ADDRESS, |last| last.moved_to + (last.module.end - last.module.start));
            let moved_to = last.next_multiple_of(1 << 21);
            list.push(UnloadedModule { module, unloads, moved_to, is_written: false });
        }
        self.len.store(list.len() as u32, Ordering::Release);
        note_unloaded_modules();
    }

    /// The node as the trace stores it. `unloads` is the number of unloads before its capture.
    pub(crate) fn place(&self, node: NativeNode, unloads: u32) -> NativeNode {
        if self.len.load(Ordering::Acquire) == 0 {
            return node;
        }
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        // A return address may lie just behind the last byte of a function.
        let address = node.return_address.wrapping_sub(1);
        let owner = list.iter().find(|unloaded| {
            unloads <= unloaded.unloads && (unloaded.module.start..unloaded.module.end).contains(&address)
        });
        owner.map_or(node, |owner| NativeNode {
            return_address: node.return_address - owner.module.start + owner.moved_to,
            ..node
        })
    }

    /// The unloaded modules at their new addresses that were not returned before.
    pub(crate) fn take_new(&self) -> Vec<ModuleDef> {
        if self.len.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let new = list.iter_mut().filter(|unloaded| !unloaded.is_written).map(|unloaded| {
            unloaded.is_written = true;
            let ModuleDef { load_bias, start, end, .. } = unloaded.module;
            ModuleDef {
                load_bias: load_bias.wrapping_sub(start).wrapping_add(unloaded.moved_to),
                start: unloaded.moved_to,
                end: end - start + unloaded.moved_to,
                ..unloaded.module.clone()
            }
        });
        new.collect()
    }
}

/// The modules before an unload. [`UnloadWatch::finish`] notes which of them are gone.
#[derive(Debug)]
pub struct UnloadWatch {
    session: &'static Session,
    before: Vec<ModuleDef>,
    removed: u64,
    /// Number of unloads that were noted before.
    unloads: u32,
}

/// Lists the loaded modules, if a recording needs to know which are unloaded. To be called before
/// `dlclose`. Allocates, so it does nothing if little memory is left.
pub fn watch_unloads() -> Option<UnloadWatch> {
    let session = current::running().filter(|session| session.is_own_process())?;
    if session.native == NativeStacks::None || !has_memory_left() {
        return None;
    }
    let (unloads, (_, removed)) = (unloads(), platform::loaded_module_counts());
    Some(UnloadWatch { session, before: platform::loaded_modules(), removed, unloads })
}

impl UnloadWatch {
    /// Notes the modules that are gone.
    pub fn finish(self) {
        if platform::loaded_module_counts().1 == self.removed {
            return;
        }
        if !has_memory_left() {
            note_unloaded_modules();
            return;
        }
        let after = platform::loaded_modules();
        let is_gone = |module: &ModuleDef| !after.contains(module);
        self.session.unloaded.add(self.before.into_iter().filter(is_gone).collect(), self.unloads);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::NodeId;

    fn module(path: &str, start: u64) -> ModuleDef {
        ModuleDef {
            load_bias: start - 0x1000,
            start,
            end: start + 0x5000,
            path: path.to_owned(),
            build_id: vec![1],
        }
    }

    #[test]
    fn nodes_follow_the_module_that_had_their_address() {
        let unloaded = UnloadedModules::default();
        // No other test of this program counts unloads.
        let before = unloads();
        let node = |address| NativeNode { id: NodeId(1), parent: NodeId::NONE, return_address: address };
        assert_eq!(unloaded.place(node(0x7010), before), node(0x7010));
        unloaded.add(vec![module("a", 0x7000)], before);
        // Another thread began to watch before `a` was gone.
        unloaded.add(vec![module("a", 0x7000), module("b", 0x6000), module("c", 0x9_0000)], before);
        let new = unloaded.take_new();
        assert_eq!((new.len(), unloaded.take_new()), (3, Vec::new()));
        let name_of = |node: NativeNode| {
            let module = new.iter().find(|module| (module.start..module.end).contains(&node.return_address));
            module.map(|module| (module.path.as_str(), node.return_address - module.load_bias))
        };
        assert_eq!(name_of(unloaded.place(node(0x7010), before)), Some(("a", 0x1010)));
        assert_eq!(name_of(unloaded.place(node(0x7010), before + 1)), Some(("b", 0x2010)));
        assert_eq!(name_of(unloaded.place(node(0x9_0001), before)), Some(("c", 0x1001)));
        assert_eq!(unloaded.place(node(0x7010), before + 2), node(0x7010), "of a module that is loaded");
    }
}
