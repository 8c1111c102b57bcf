//! The `gpumemtrace` command (`lib.rs`).
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    gpumemtrace_cli::run_command()
}
