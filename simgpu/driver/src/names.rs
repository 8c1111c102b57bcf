//! Names of driver functions: `cuMemAllocAsync_ptsz` is the function `cuMemAllocAsync`, `cuMemAlloc_v2` is `cuMemAlloc`.

/// An exported function: its name in the library, the driver version that brought it, and its address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Export {
    pub(crate) name: &'static str,
    pub(crate) version: u32,
    pub(crate) address: *const (),
}

/// Whether a name is the per-thread-default-stream twin of another.
pub(crate) fn is_per_thread(name: &str) -> bool {
    name.ends_with("_ptsz") || name.ends_with("_ptds")
}

/// The name under which `cuGetProcAddress` knows an exported function.
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
    fn suffixes_come_off_in_the_right_order() {
        assert_eq!(base_name("cuMemAlloc_v2"), "cuMemAlloc");
        assert_eq!(base_name("cuMemcpyHtoDAsync_v2_ptsz"), "cuMemcpyHtoDAsync");
        assert_eq!(base_name("cuMemcpy_ptds"), "cuMemcpy");
        assert_eq!(base_name("cuMemAllocAsync"), "cuMemAllocAsync");
    }
}
