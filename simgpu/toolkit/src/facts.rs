//! The facts block of this copy (see `simgpu-common`) and the switches in the environment that the maths libraries know.

use std::sync::OnceLock;

use simgpu_common::{Facts, FactsBlock, parse_bool, parse_size, warn};

/// Overwritten in the file by `simgpu-setup`, hence never a constant to the compiler: it is only read through [`facts`].
#[unsafe(no_mangle)]
#[used]
static mut simgpu_facts_block: FactsBlock = FactsBlock::new();

/// Versions that the wheel was compiled against.
pub(crate) fn facts() -> &'static Facts {
    static FACTS: OnceLock<Facts> = OnceLock::new();
    FACTS.get_or_init(|| {
        // SAFETY: nothing in the process ever writes the block; the read is volatile because the file may differ from what was compiled.
        let block = unsafe { (&raw const simgpu_facts_block).read_volatile() };
        Facts::from_bytes(&block.0)
    })
}

/// A number of bytes from the environment.
pub(crate) fn bytes_switch(name: &'static str) -> u64 {
    let Ok(text) = std::env::var(name) else { return 0 };
    parse_size(&text).unwrap_or_else(|| {
        warn(name, &text, "a number of bytes such as 64M", "0");
        0
    })
}

/// Whether `SIMGPU_TRACE` is on.
pub(crate) fn tracing() -> bool {
    static TRACING: OnceLock<bool> = OnceLock::new();
    *TRACING
        .get_or_init(|| std::env::var("SIMGPU_TRACE").is_ok_and(|text| parse_bool(&text).unwrap_or(false)))
}

/// One line for `SIMGPU_TRACE`.
pub(crate) fn trace(line: &str) {
    use std::io::Write as _;
    let _ = std::io::stderr().write_all(format!("simgpu: {line}\n").as_bytes());
}
