//! Differences between operating systems: the name of the library, the loader's variables.
//!
//! The system is a value, so the rules for macOS are tested on Linux. Only [`Platform::HOST`]
//! depends on the target of the build.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::sanitizer::order_preloads;

/// A system on which programs can be recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Platform {
    Linux,
    MacOs,
}

impl Platform {
    /// The target of this build.
    pub(crate) const HOST: Self = if cfg!(target_os = "macos") { Self::MacOs } else { Self::Linux };

    /// The file name of the library.
    pub(crate) fn library_name(self) -> &'static str {
        match self {
            Self::Linux => "libgpumemtrace.so",
            Self::MacOs => "libgpumemtrace.dylib",
        }
    }

    /// The variable that lists libraries to preload.
    pub(crate) fn preload_variable(self) -> &'static str {
        match self {
            Self::Linux => "LD_PRELOAD",
            Self::MacOs => "DYLD_INSERT_LIBRARIES",
        }
    }

    /// The separators of that list, which no library path may contain.
    pub(crate) fn separators(self) -> &'static [u8] {
        match self {
            Self::Linux => b" :",
            Self::MacOs => b":",
        }
    }

    /// The variables that preload `library`. It comes before libraries that are already listed,
    /// except for sanitizer runtimes. `runtime` is one that the program is linked with.
    pub(crate) fn preload_environment(
        self,
        library: &Path,
        runtime: Option<&OsStr>,
        set: impl Fn(&str) -> Option<OsString>,
    ) -> Vec<(&'static str, OsString)> {
        let set = |name: &str| set(name).filter(|value| !value.is_empty());
        let old = set(self.preload_variable()).unwrap_or_default();
        let list = match self {
            Self::Linux => order_preloads(library.as_os_str(), &old, runtime),
            Self::MacOs if old.is_empty() => library.as_os_str().to_owned(),
            Self::MacOs => {
                let mut list = library.as_os_str().to_owned();
                list.push(":");
                list.push(old);
                list
            }
        };
        let mut variables = vec![(self.preload_variable(), list)];
        // NVTX sends ranges to the library that this variable names. Another tool's value stays.
        let nvtx = "NVTX_INJECTION64_PATH";
        if self == Self::Linux && set(nvtx).is_none() {
            variables.push((nvtx, library.as_os_str().to_owned()));
        }
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(platform: Platform, set: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let value =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        let variables = platform.preload_environment(Path::new("/opt/lib"), None, value);
        variables.into_iter().map(|(name, value)| (name, value.into_string().unwrap())).collect()
    }

    #[test]
    fn library_is_preloaded_first_and_existing_values_stay() {
        let (linux, mac) = (Platform::Linux, Platform::MacOs);
        let nvtx = ("NVTX_INJECTION64_PATH", "/opt/lib".to_owned());
        assert_eq!(environment(linux, &[]), [("LD_PRELOAD", "/opt/lib".to_owned()), nvtx.clone()]);
        assert_eq!(
            environment(linux, &[("LD_PRELOAD", "/a.so:/b.so"), ("NVTX_INJECTION64_PATH", "")]),
            [("LD_PRELOAD", "/opt/lib:/a.so:/b.so".to_owned()), nvtx.clone()]
        );
        assert_eq!(
            environment(linux, &[("LD_PRELOAD", "/libasan.so.8:/b.so")]),
            [("LD_PRELOAD", "/libasan.so.8:/opt/lib:/b.so".to_owned()), nvtx]
        );
        let taken = [("NVTX_INJECTION64_PATH", "/nsys.so")];
        assert_eq!(environment(linux, &taken), [("LD_PRELOAD", "/opt/lib".to_owned())]);
        let inserted = |list: &str| [("DYLD_INSERT_LIBRARIES", list.to_owned())];
        assert_eq!(environment(mac, &[("LD_PRELOAD", "/a.so")]), inserted("/opt/lib"));
        assert_eq!(environment(mac, &[("DYLD_INSERT_LIBRARIES", "")]), inserted("/opt/lib"));
        let other = [("DYLD_INSERT_LIBRARIES", "/usr/lib/libgmalloc.dylib")];
        assert_eq!(environment(mac, &other), inserted("/opt/lib:/usr/lib/libgmalloc.dylib"));
    }
}
