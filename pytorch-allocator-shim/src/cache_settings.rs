//! The settings of `PYTORCH_ALLOC_CONF` and the rules of the loaded PyTorch.
//!
//! The Python package passes PyTorch's version before the cache is enabled. Without it, the newest
//! known rules apply. What the cache cannot do is reported once, and the cache goes on without it.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use gpumemtrace_caching_allocator::{Rules, Settings, TorchVersion};

/// First minor version of PyTorch 2 in which CUDA reads `PYTORCH_ALLOC_CONF`.
const GENERIC_NAME_SINCE: u32 = 10;

static CONFIGURED: OnceLock<(Settings, Rules)> = OnceLock::new();

/// Settings and rules for a new cache.
pub(crate) fn settings_and_rules() -> (Settings, Rules) {
    let default = || (Settings::default(), Rules::of_version(TorchVersion::LATEST));
    CONFIGURED.get().cloned().unwrap_or_else(default)
}

/// Reads the settings in the environment as this version of PyTorch does (`torch.__version__`), and
/// follows its rules. The first call wins. Problems are reported on stderr.
///
/// # Safety
/// `torch_version` is null or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumemtrace_configure_cache(torch_version: *const c_char) {
    if torch_version.is_null() {
        return;
    }
    // SAFETY: the caller promises a NUL-terminated string.
    let text = unsafe { CStr::from_ptr(torch_version) }.to_string_lossy();
    let version = TorchVersion::parse(&text).unwrap_or_else(|error| {
        report(&format!("{error}, which the allocator follows"));
        error.nearest.unwrap_or(TorchVersion::LATEST)
    });
    let (settings, problems) = supported_settings(read_environment(version).as_deref(), version);
    if CONFIGURED.set((settings, Rules::of_version(version))).is_ok() {
        for problem in &problems {
            report(problem);
        }
    }
}

/// The text of the settings. `PYTORCH_CUDA_ALLOC_CONF` has precedence.
fn read_environment(version: TorchVersion) -> Option<String> {
    let generic = (version.minor() >= GENERIC_NAME_SINCE).then_some("PYTORCH_ALLOC_CONF");
    ["PYTORCH_CUDA_ALLOC_CONF"].into_iter().chain(generic).find_map(|name| std::env::var(name).ok())
}

/// The settings in a text that the cache can follow, and a sentence for each other one.
fn supported_settings(text: Option<&str>, version: TorchVersion) -> (Settings, Vec<String>) {
    let mut problems = Vec::new();
    let mut settings = Settings::parse(text.unwrap_or_default(), version).unwrap_or_else(|error| {
        problems.push(format!("PYTORCH_ALLOC_CONF is ignored: {error}"));
        Settings::default()
    });
    let mut ignored = std::mem::take(&mut settings.not_modelled);
    if std::mem::take(&mut settings.expandable_segments) {
        ignored.push("expandable_segments");
    }
    if std::mem::take(&mut settings.is_async_backend) {
        ignored.push("backend:cudaMallocAsync");
    }
    if !ignored.is_empty() {
        let names = ignored.join(" and ");
        problems.push(format!("PYTORCH_ALLOC_CONF: gpumemtrace's allocator ignores {names}"));
    }
    (settings, problems)
}

fn report(problem: &str) {
    gpumemtrace_recorder::print_diagnostic(&[problem]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_settings_are_named_and_the_others_followed() {
        let version = TorchVersion::LATEST;
        let (settings, problems) =
            supported_settings(Some("expandable_segments:True,max_split_size_mb:64"), version);
        assert_eq!((settings.expandable_segments, settings.max_split_bytes), (false, 64 << 20));
        assert_eq!(problems, ["PYTORCH_ALLOC_CONF: gpumemtrace's allocator ignores expandable_segments"]);
        let (settings, problems) = supported_settings(Some("max_split_size_mb:1"), version);
        assert_eq!(settings, Settings::default());
        assert_eq!(
            problems,
            ["PYTORCH_ALLOC_CONF is ignored: max_split_size_mb:1 is refused: torch 2.15 needs at least 20"]
        );
        assert_eq!(supported_settings(None, version), (Settings::default(), vec![]));
    }
}
