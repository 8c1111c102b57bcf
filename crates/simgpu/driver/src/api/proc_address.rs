//! `cuGetProcAddress`: maps base name and CUDA version to an address.
//!
//! A runtime asks by base name and version and expects the newest variant that is not newer
//! (`cuMemAlloc` at 12000 is `cuMemAlloc_v2`); flag 2 selects the per-thread variant. The table of
//! exports answers. The dynamic linker is never used, because a tracer may have replaced `dlsym`.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::api;
use crate::entry::{config, exports, trace};
use crate::ffi::{Out, Text};
use crate::names::{Export, base_name, is_per_thread};
use crate::result_code::{ApiResult, INVALID_VALUE, NOT_FOUND};

const PER_THREAD_STREAM: u64 = 2;

const STATUS_SUCCESS: u32 = 0;
const STATUS_NOT_FOUND: u32 = 1;
const STATUS_TOO_NEW: u32 = 2;

/// One exported variant of a base name.
#[derive(Debug, Clone, Copy)]
struct Variant {
    name: &'static str,
    version: u32,
    address: usize,
}

fn table() -> &'static HashMap<&'static str, Vec<Variant>> {
    static TABLE: OnceLock<HashMap<&'static str, Vec<Variant>>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let all: Vec<&Export> = api::exports().collect();
        let addresses: Vec<usize> = all.iter().map(|export| export.address as usize).collect();
        let addresses = if config().alt_procaddr {
            crate::address_thunks::make(&addresses).unwrap_or(addresses)
        } else {
            addresses
        };
        let mut table: HashMap<&'static str, Vec<Variant>> = HashMap::new();
        for (export, address) in all.into_iter().zip(addresses) {
            let variant = Variant { name: export.name, version: export.version, address };
            table.entry(base_name(export.name)).or_default().push(variant);
        }
        table
    })
}

/// Returns the newest variant up to `version`; on a tie, the one with the higher suffix.
fn choose(variants: &[Variant], version: u32, per_thread: bool) -> Option<Variant> {
    let newest = |twin: bool| {
        let fitting = variants
            .iter()
            .filter(|variant| variant.version <= version && is_per_thread(variant.name) == twin);
        fitting.max_by_key(|variant| (variant.version, variant.name.len(), variant.name)).copied()
    };
    per_thread.then(|| newest(true)).flatten().or_else(|| newest(false))
}

fn look_up(name: &str, version: u32, flags: u64) -> Result<Variant, u32> {
    let variants = table().get(name).ok_or(STATUS_NOT_FOUND)?;
    choose(variants, version, flags & PER_THREAD_STREAM != 0).ok_or(STATUS_TOO_NEW)
}

fn answer(symbol: Text, out: Out<u64>, version: i32, flags: u64, status: Option<Out<u32>>) -> ApiResult {
    let name = symbol.get()?.to_str().map_err(|_| INVALID_VALUE)?;
    // A runtime first probes with an empty name and no version.
    if name.is_empty() && version == 0 {
        out.put_if_wanted(0);
        if let Some(status) = status {
            status.put_if_wanted(STATUS_SUCCESS);
        }
        return Ok(());
    }
    out.check()?;
    let found = look_up(name, u32::try_from(version).unwrap_or(0), flags);
    if config().trace {
        let outcome =
            found.map_or_else(|status| format!("status {status}"), |variant| variant.name.to_owned());
        trace(&format!("look-up {name} {version} flags {flags}: {outcome}"));
    }
    out.put(found.map_or(0, |variant| variant.address as u64))?;
    let wants_status = status.is_some_and(|status| status.check().is_ok());
    if let Some(status) = status {
        status.put_if_wanted(found.err().unwrap_or(STATUS_SUCCESS));
    }
    // If the caller passes a status, an unknown name is reported there and is no error.
    if found.is_ok() || wants_status { Ok(()) } else { Err(NOT_FOUND) }
}

exports! {
    plain 11030 cuGetProcAddress(symbol: Text, out: Out<u64>, version: i32, flags: u64) {
        answer(symbol, out, version, flags, None)
    }
    plain 12000 cuGetProcAddress_v2(symbol: Text, out: Out<u64>, version: i32, flags: u64, status: Out<u32>) {
        answer(symbol, out, version, flags, Some(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(name: &str, version: u32, flags: u64) -> Result<&'static str, u32> {
        look_up(name, version, flags).map(|variant| variant.name)
    }

    #[test]
    fn version_selects_newest_variant_up_to_it() {
        assert_eq!(name_of("cuMemAlloc", 2000, 0), Ok("cuMemAlloc"));
        assert_eq!(name_of("cuMemAlloc", 3020, 0), Ok("cuMemAlloc_v2"));
        assert_eq!(name_of("cuMemFree", 13000, 0), Ok("cuMemFree_v2"));
    }

    #[test]
    fn flag_two_selects_per_thread_variant() {
        assert_eq!(name_of("cuMemAllocAsync", 11020, 2), Ok("cuMemAllocAsync_ptsz"));
        assert_eq!(name_of("cuMemAllocAsync", 11020, 0), Ok("cuMemAllocAsync"));
        assert_eq!(name_of("cuMemAlloc", 12000, 2), Ok("cuMemAlloc_v2"));
    }

    #[test]
    fn resolver_finds_itself_by_version() {
        assert_eq!(name_of("cuGetProcAddress", 11030, 0), Ok("cuGetProcAddress"));
        assert_eq!(name_of("cuGetProcAddress", 12000, 0), Ok("cuGetProcAddress_v2"));
    }

    #[test]
    fn unknown_name_and_early_version_have_distinct_status() {
        assert_eq!(name_of("cuMemAllok", 12000, 0), Err(STATUS_NOT_FOUND));
        assert_eq!(name_of("cuMemAlloc_v2", 12000, 0), Err(STATUS_NOT_FOUND));
        assert_eq!(name_of("cuMemCreate", 10000, 0), Err(STATUS_TOO_NEW));
    }

    #[test]
    fn exported_names_are_unique() {
        let mut names: Vec<_> = api::exports().map(|export| export.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
