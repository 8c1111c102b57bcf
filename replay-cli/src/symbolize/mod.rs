//! Symbolizes native addresses from the files of the libraries on this machine.
//!
//! A wrong name is worse than none, so a file is used only if its build ID is that of the module in
//! the trace. A library may have gigabytes of debug information. So its file is opened only for an
//! address that no cache knows, and only the needed sections are read. Each address is looked up
//! once, also across runs (`cache.rs`).

mod cache;
mod debug_info;
mod elf;
mod locate;
mod table;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use gpumemtrace_format::{ModuleDef, NamedFrame};
use gpumemtrace_replay::callsite::Symbolizer;
use gpumemtrace_replay::report::UnnamedReason;

pub use cache::read_cached_names;

use cache::SymbolCache;
use debug_info::DebugInfo;
use elf::ElfImage;
use locate::ModuleFiles;
use table::SymbolTable;

/// Looks up native addresses, with caches in memory and on disk, by build ID.
pub struct Resolver {
    cache: Option<SymbolCache>,
    modules: HashMap<Vec<u8>, ResolvedModule>,
}

/// One build of one library, and the addresses looked up in it.
struct ResolvedModule {
    located: Result<ModuleFiles, UnnamedReason>,
    /// Opened at the first address that no cache knows.
    symbols: Option<ModuleSymbols>,
    /// The addresses looked up so far. An address without a symbol has no frames.
    names: HashMap<u64, Vec<NamedFrame>>,
    is_changed: bool,
}

/// The debug information and symbols of a module.
struct ModuleSymbols {
    debug_info: Option<DebugInfo>,
    table: SymbolTable,
}

impl Resolver {
    /// Creates a resolver with the user's cache on disk, unless `GPUMEMTRACE_CACHE=off` is set.
    pub fn for_user() -> Self {
        Self { cache: SymbolCache::for_user(), modules: HashMap::new() }
    }

    fn module(&mut self, definition: &ModuleDef) -> &mut ResolvedModule {
        let cache = &self.cache;
        self.modules.entry(definition.build_id.clone()).or_insert_with(|| {
            let located = locate::locate_module(definition);
            let sources = located.as_ref().map(ModuleFiles::identity).ok();
            let names = cache.as_ref().and_then(|cache| cache.read(&definition.build_id, sources.as_deref()));
            ResolvedModule { located, symbols: None, names: names.unwrap_or_default(), is_changed: false }
        })
    }

    /// Writes new names to the cache on disk. Errors are ignored: they only cost time later.
    pub fn save_cache(&self) {
        let Some(cache) = &self.cache else { return };
        for (build_id, module) in self.modules.iter().filter(|(_, module)| module.is_changed) {
            if let Ok(located) = &module.located {
                let _ = cache.write(build_id, &located.identity(), &module.names);
            }
        }
        cache.trim();
    }
}

impl Symbolizer for Resolver {
    fn resolve(&mut self, definition: &ModuleDef, address: u64) -> Result<Vec<NamedFrame>, UnnamedReason> {
        if definition.build_id.is_empty() {
            return Err(UnnamedReason::NoBuildId);
        }
        let module = self.module(definition);
        if !module.names.contains_key(&address) {
            let located = module.located.as_ref().map_err(|why| *why)?;
            let symbols = module.symbols.get_or_insert_with(|| ModuleSymbols::open(located));
            module.names.insert(address, symbols.frames(address));
            module.is_changed = true;
        }
        let frames = &module.names[&address];
        if frames.is_empty() { Err(UnnamedReason::NoSymbols) } else { Ok(frames.clone()) }
    }
}

impl ModuleSymbols {
    fn open(located: &ModuleFiles) -> Self {
        Self::read(|| located.debug.iter().chain(&located.code))
    }

    fn read<'a, I: Iterator<Item = &'a ElfImage>>(images: impl Fn() -> I) -> Self {
        Self {
            debug_info: images().find(|image| image.has_debug_info()).and_then(DebugInfo::read),
            table: SymbolTable::read(images()),
        }
    }

    /// The frames at an address: inlined functions, then their caller. Empty if none is known.
    fn frames(&self, address: u64) -> Vec<NamedFrame> {
        let mut frames = self.debug_info.as_ref().map(|info| info.frames(address)).unwrap_or_default();
        if frames.last().is_none_or(|outermost| outermost.function.is_empty()) {
            let Some(name) = self.table.name_at(address) else {
                // Drop frames that have a line but no function.
                frames.retain(|frame| !frame.function.is_empty());
                return frames;
            };
            let function = demangle(&name).into();
            match frames.last_mut() {
                Some(outermost) => outermost.function = function,
                None => frames.push(NamedFrame { function, file: "".into(), line: 0 }),
            }
        }
        frames
    }
}

/// The frames of some addresses of a file, whatever its build ID; `None` if it is no valid ELF
/// file.
pub fn frames_in_file(path: &Path, addresses: &[u64]) -> Option<Vec<Vec<NamedFrame>>> {
    let image = ElfImage::open(path).ok()?;
    let symbols = ModuleSymbols::read(|| std::iter::once(&image));
    Some(addresses.iter().map(|address| symbols.frames(*address)).collect())
}

/// Demangles C++ and Rust names; other names stay as they are.
fn demangle(name: &str) -> Cow<'_, str> {
    if name.starts_with("_Z") || name.starts_with("_R") {
        addr2line::demangle_auto(Cow::Borrowed(name), None)
    } else {
        Cow::Borrowed(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled_per_language() {
        for (mangled, name) in [
            ("_ZN2at6native5emptyEl", "at::native::empty(long)"),
            ("_ZN4core3ptr4read17h0123456789abcdefE", "core::ptr::read"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("malloc", "malloc"),
            ("_Zwhatever", "_Zwhatever"),
        ] {
            assert_eq!(demangle(mangled), name);
        }
    }

    #[test]
    fn own_functions_are_found_and_other_builds_refused() {
        let path = std::env::current_exe().unwrap();
        let image = ElfImage::open(&path).unwrap();
        if image.build_id.is_empty() {
            return; // This linker writes no build ID.
        }
        let mut definition = ModuleDef {
            path: path.display().to_string(),
            build_id: image.build_id.clone(),
            ..ModuleDef::default()
        };
        let table = SymbolTable::read([&image]);
        let address = table.address_of(|name| name.contains("own_functions_are_found")).unwrap();
        let mut resolver = Resolver { cache: None, modules: HashMap::new() };
        let frames = resolver.resolve(&definition, address + 1).unwrap();
        let outermost = &frames.last().unwrap().function;
        assert!(outermost.contains("own_functions_are_found"), "{outermost}");
        assert_eq!(resolver.resolve(&definition, u64::MAX), Err(UnnamedReason::NoSymbols));

        definition.build_id[0] ^= 1;
        assert_eq!(resolver.resolve(&definition, address), Err(UnnamedReason::OtherBuild));
        definition.build_id[0] ^= 3;
        definition.path = "/nonexistent".to_owned();
        assert_eq!(resolver.resolve(&definition, address), Err(UnnamedReason::FileMissing));
        definition.build_id[0] ^= 7;
        definition.path = "/dev/null".to_owned();
        assert_eq!(resolver.resolve(&definition, address), Err(UnnamedReason::Unreadable));
        definition.build_id.clear();
        assert_eq!(resolver.resolve(&definition, address), Err(UnnamedReason::NoBuildId));
    }
}
