//! Variants of driver functions: `cuMemAllocAsync_ptsz` and `cuMemAlloc_v2` have a base name.

/// An exported function: name, driver version that added it, and address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Export {
    pub(crate) name: &'static str,
    pub(crate) version: u32,
    pub(crate) address: *const (),
}

/// Returns whether a name is a variant for the per-thread default stream.
pub(crate) fn is_per_thread(name: &str) -> bool {
    name.ends_with("_ptsz") || name.ends_with("_ptds")
}

/// Returns the name by which `cuGetProcAddress` finds an exported function.
pub(crate) fn base_name(name: &str) -> &str {
    let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((base, version)) if !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()) => {
            base
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::base_name;

    #[test]
    fn suffixes_are_removed_in_order() {
        assert_eq!(base_name("cuMemAlloc_v2"), "cuMemAlloc");
        assert_eq!(base_name("cuMemcpyHtoDAsync_v2_ptsz"), "cuMemcpyHtoDAsync");
        assert_eq!(base_name("cuMemcpy_ptds"), "cuMemcpy");
        assert_eq!(base_name("cuMemAllocAsync"), "cuMemAllocAsync");
    }
}
