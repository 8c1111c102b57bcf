//! Says at the end that a program's convolutions had no workspace.
//!
//! cuDNN chooses an algorithm by the card, or by time, and with it the size of a workspace. Neither
//! is known here. `gpumemtrace simulate` asks for the line, since it reports memory to a user.

use std::io::Write as _;
use std::sync::Once;

/// Set by `gpumemtrace simulate`.
const ASKED: &str = "SIMGPU_NAME_MISSING";

/// The bounds are those of docs/commands/simulate.md, which compares models with an H200.
const LINE: &str = "gpumemtrace: workspaces of convolutions are unknown here; on an H200, 10 models \
    reserved 3% less to 22% more than without them\n";

static NOTED: Once = Once::new();

/// Notes that a convolution got no workspace.
pub(super) fn note() {
    NOTED.call_once(|| {
        let is_first_rank = std::env::var("LOCAL_RANK").map_or(true, |rank| rank == "0");
        if std::env::var_os(ASKED).is_some() && is_first_rank {
            // SAFETY: the function is of this library, which is never unloaded. If it cannot be
            // registered, the line is missing.
            unsafe { libc::atexit(print_line) };
        }
    });
}

extern "C" fn print_line() {
    // A closed stderr is not an error.
    let _ = std::io::stderr().write_all(LINE.as_bytes());
}
