//! Redirects the calls of modules that were loaded before us, by patching their GOT slots.
//!
//! A library that a running program loads by `dlopen` comes last in the loader's order. Bound calls
//! stay bound, and modules loaded later find libc's functions first. This module points the GOT
//! slots of each loaded module to our functions, as the loader does for a preloaded library.
//! Modules that are loaded later are handled by [`patch_new_modules`]. Addresses that the program
//! has already taken by `dlsym` are out of reach.
//!
//! [`module`] checks and writes; [`relocations`] lists a module's slots by symbol name.

mod module;
mod relocations;

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::sync::Mutex;

use gpumemtrace_recorder::elf::{ElfModule, find_module};

use module::PatchableModule;
use relocations::got_slots;

/// Which of our functions other modules are made to call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PatchScope {
    /// All that a preloaded library would interpose, with the driver functions of these names.
    All { driver_functions: Vec<&'static str> },
    /// Those of PyTorch and of process exit, but neither driver functions nor `dlsym`.
    WithoutDriver,
}

const PYTORCH_FUNCTIONS: [&CStr; 4] = [
    c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
    c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
    c"_ZN2at15sequence_number17get_and_incrementEv",
    c"_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_INS0_10ReadyQueueEE",
];
const PROCESS_FUNCTIONS: [&CStr; 4] = [c"dlclose", c"_exit", c"_Exit", c"prctl"];
const DRIVER_LOOKUPS: [&CStr; 3] = [c"dlsym", c"cuGetProcAddress", c"cuGetProcAddress_v2"];

/// Modules that may be loaded between two visits. With more, the set of patched ones grows while
/// the loader's list is locked.
const ROOM_FOR_MODULES: usize = 1024;

/// The functions to redirect to, and the modules that have been patched.
struct GotPatcher {
    /// Addresses of our functions by name.
    functions: HashMap<&'static CStr, usize>,
    /// [`ElfModule::identity`] of each module that needs no more work.
    patched: HashSet<(usize, usize)>,
    /// The loader's counts of loaded and unloaded modules at the last visit.
    module_counts: (u64, u64),
    /// [`ElfModule::identity`] of this library.
    own: (usize, usize),
}

static PATCHER: Mutex<Option<GotPatcher>> = Mutex::new(None);

/// Points the GOT slots of all loaded modules to our functions. The scope of the first call stays.
pub(crate) fn patch_modules(scope: PatchScope) {
    let Ok(mut patcher) = PATCHER.lock() else { return };
    if patcher.is_none() {
        *patcher = GotPatcher::new(scope);
    }
    if let Some(patcher) = patcher.as_mut() {
        patcher.patch_all();
    }
}

/// Patches the modules that were loaded since the last call. Cheap if there are none.
pub(crate) fn patch_new_modules() {
    // If another thread holds the lock, it is patching them now.
    if let Ok(mut patcher) = PATCHER.try_lock()
        && let Some(patcher) = patcher.as_mut()
    {
        patcher.patch_all();
    }
}

impl GotPatcher {
    fn new(scope: PatchScope) -> Option<Self> {
        let driver: Vec<&'static CStr> = match scope {
            PatchScope::All { driver_functions } => {
                let names = driver_functions.into_iter().filter_map(|name| CString::new(name).ok());
                names.map(|name| &*Box::leak(name.into_boxed_c_str())).chain(DRIVER_LOOKUPS).collect()
            }
            PatchScope::WithoutDriver => Vec::new(),
        };
        let names = driver.into_iter().chain(PYTORCH_FUNCTIONS).chain(PROCESS_FUNCTIONS);
        let mut functions: HashMap<&'static CStr, usize> = names.map(|name| (name, 0)).collect();
        let here = Self::new as *const () as usize;
        // Nothing is allocated while the loader's list is locked.
        let own = find_module(|module| {
            module.contains(here, 1).then(|| {
                functions.retain(|name, address| {
                    *address = module.symbol(name).unwrap_or(0);
                    *address != 0
                });
                module.identity()
            })
        })?;
        Some(Self { functions, patched: HashSet::new(), module_counts: (u64::MAX, 0), own })
    }

    fn patch_all(&mut self) {
        let now = gpumemtrace_recorder::loaded_module_counts();
        if now == self.module_counts {
            return;
        }
        if now.1 != self.module_counts.1 {
            // After an unload, another module may have the identity of a patched one.
            self.patched.clear();
        }
        self.module_counts = now;
        // Nothing is allocated while the loader's list is locked.
        self.patched.reserve(ROOM_FOR_MODULES);
        find_module(|module| {
            self.patch(module);
            None::<()>
        });
    }

    fn patch(&mut self, module: &ElfModule<'_>) {
        let patchable = PatchableModule(module);
        let identity = module.identity();
        if identity == self.own || patchable.is_exempt() || !self.patched.insert(identity) {
            return;
        }
        let Some(tables) = patchable.slot_tables() else { return };
        let name_at = |index: u32| tables.symbols.get(index as usize).map(|symbol| symbol.name);
        for relocations in [tables.jump_slots, tables.relocations] {
            for (offset, name) in got_slots(relocations, name_at, tables.strings) {
                if let Some(function) = self.functions.get(name) {
                    patchable.set_slot(offset, *function);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn replacement() -> libc::pid_t {
        -77
    }

    fn patcher(name: &'static CStr) -> GotPatcher {
        let functions = HashMap::from([(name, replacement as *const () as usize)]);
        GotPatcher { functions, patched: HashSet::new(), module_counts: (u64::MAX, 0), own: (1, 1) }
    }

    #[test]
    fn patched_slot_redirects_calls_and_can_be_restored() {
        // No other test of this process calls `getppid`.
        // SAFETY: no arguments, no effect.
        let call = || unsafe { libc::getppid() };
        let before = call();
        patcher(c"getppid").patch_all();
        assert_eq!(call(), -77, "the test's own slot, read-only or not");
        // SAFETY: a NUL-terminated name.
        let real = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getppid".as_ptr()) };
        let mut restoring = patcher(c"getppid");
        restoring.functions.insert(c"getppid", real as usize);
        restoring.patch_all();
        assert_eq!(call(), before);
    }

    #[test]
    fn patched_modules_are_not_visited_again() {
        let mut patcher = patcher(c"gpumemtrace_no_such_function");
        patcher.patch_all();
        let patched = patcher.patched.clone();
        assert!(!patched.is_empty());
        patcher.module_counts = (u64::MAX, patcher.module_counts.1);
        patcher.patch_all();
        assert!(patched.is_subset(&patcher.patched));
    }
}
