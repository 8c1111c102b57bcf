//! The folder of this user's caches.

use std::path::PathBuf;

/// A folder below `XDG_CACHE_HOME` or `~/.cache`. `None` with `GPUMEMTRACE_CACHE=off` or without a
/// home folder.
pub(crate) fn user_cache(name: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if set("GPUMEMTRACE_CACHE").is_some_and(|value| value == "off") {
        return None;
    }
    let caches = set("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = caches.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
    Some(caches.join("gpumemtrace").join(name))
}
