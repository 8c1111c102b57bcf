//! The version block of this copy (see `simgpu-common`), and the environment variables of the math
//! libraries.

use std::sync::OnceLock;

use simgpu_common::{VersionBlock, WheelVersions, parse_bool, parse_size, warn};

/// Overwritten in the file by `simgpu-setup`; [`wheel_versions`] reads it as volatile.
#[unsafe(no_mangle)]
#[used]
static mut simgpu_version_block: VersionBlock = VersionBlock::new();

/// Returns the versions that the wheel was compiled against.
pub(crate) fn wheel_versions() -> &'static WheelVersions {
    static FACTS: OnceLock<WheelVersions> = OnceLock::new();
    FACTS.get_or_init(|| {
        // SAFETY: the process never writes the block; the file may differ from the compiled value.
        let block = unsafe { (&raw const simgpu_version_block).read_volatile() };
        WheelVersions::from_bytes(&block.0)
    })
}

/// Returns a number of bytes from the environment, 0 by default.
pub(crate) fn bytes_switch(name: &'static str) -> u64 {
    let Ok(text) = std::env::var(name) else { return 0 };
    parse_size(&text).unwrap_or_else(|| {
        warn(name, &text, "a number of bytes such as 64M", "0");
        0
    })
}

/// Returns whether `SIMGPU_TRACE` is on.
pub(crate) fn tracing() -> bool {
    static TRACING: OnceLock<bool> = OnceLock::new();
    *TRACING
        .get_or_init(|| std::env::var("SIMGPU_TRACE").is_ok_and(|text| parse_bool(&text).unwrap_or(false)))
}

/// Prints one line for `SIMGPU_TRACE`.
pub(crate) fn trace(line: &str) {
    use std::io::Write as _;
    let _ = std::io::stderr().write_all(format!("simgpu: {line}\n").as_bytes());
}
