//! `--force` of commands that write files.

#[derive(clap::Args, Clone, Copy, Default)]
pub(crate) struct ForceArgs {
    /// Replace an existing file that gpumemtrace did not write
    #[arg(long)]
    pub(crate) force: bool,
}
