//! What is another matter on another system: the name of the library, and by which variable the loader takes it into a program.
//!
//! Constraint: what is done on a Mac is to be tried where there is none. Consequence: the system is a value that is handed on, and only
//! [`Platform::HOST`] asks for which one this was compiled.

use std::ffi::OsString;
use std::path::Path;

/// A system that programs are recorded on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Platform {
    /// With glibc's loader.
    Linux,
    /// With dyld.
    MacOs,
}

impl Platform {
    /// This one.
    pub(crate) const HOST: Self = if cfg!(target_os = "macos") { Self::MacOs } else { Self::Linux };

    /// The file name of the library.
    pub(crate) fn library_name(self) -> &'static str {
        match self {
            Self::Linux => "libgpumemtrace.so",
            Self::MacOs => "libgpumemtrace.dylib",
        }
    }

    /// The variable that names libraries to load before others.
    pub(crate) fn preload_variable(self) -> &'static str {
        match self {
            Self::Linux => "LD_PRELOAD",
            Self::MacOs => "DYLD_INSERT_LIBRARIES",
        }
    }

    /// What stands between two names there, and so in none of them.
    pub(crate) fn separators(self) -> &'static [u8] {
        match self {
            Self::Linux => b" :",
            Self::MacOs => b":",
        }
    }

    /// What the environment of a program needs for the library to be in it: ours first, what the user has it load stays.
    pub(crate) fn preload_environment(
        self,
        library: &Path,
        set: impl Fn(&str) -> Option<OsString>,
    ) -> Vec<(&'static str, OsString)> {
        let set = |name: &str| set(name).filter(|value| !value.is_empty());
        let mut list = library.as_os_str().to_owned();
        if let Some(old) = set(self.preload_variable()) {
            list.push(":");
            list.push(old);
        }
        let mut variables = vec![(self.preload_variable(), list)];
        // NVTX ranges come to the library that this names, unless another tool has it.
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
        let variables = platform.preload_environment(Path::new("/opt/lib"), value);
        variables.into_iter().map(|(name, value)| (name, value.into_string().unwrap())).collect()
    }

    #[test]
    fn ours_comes_first_and_what_the_user_loads_stays() {
        let (linux, mac) = (Platform::Linux, Platform::MacOs);
        let nvtx = ("NVTX_INJECTION64_PATH", "/opt/lib".to_owned());
        assert_eq!(environment(linux, &[]), [("LD_PRELOAD", "/opt/lib".to_owned()), nvtx.clone()]);
        assert_eq!(
            environment(linux, &[("LD_PRELOAD", "/a.so:/b.so"), ("NVTX_INJECTION64_PATH", "")]),
            [("LD_PRELOAD", "/opt/lib:/a.so:/b.so".to_owned()), nvtx]
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
