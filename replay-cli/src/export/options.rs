//! Options that only some formats have.

use std::path::PathBuf;

use super::{Exporter, StackValue};
use crate::exit::UsageError;

/// Options of single formats. The defaults are those of the command line.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct FormatOptions {
    /// Value of each stack in folded [default: peak]; speedscope and pprof show it first
    #[arg(long, value_name = "VALUE")]
    pub(crate) value: Option<StackValue>,
    /// Also show what torch.profiler's export_chrome_trace() wrote (perfetto); may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) with: Vec<PathBuf>,
    /// Most events in a torch-snapshot; the first ones of the window are left out
    ///
    /// PyTorch's viewer becomes slow above the default.
    #[arg(long, value_name = "COUNT", default_value_t = 250_000)]
    pub(crate) max_events: u64,
}

impl FormatOptions {
    /// Fails if an option was given that the format does not have.
    pub(crate) fn check(&self, exporter: &dyn Exporter) -> Result<(), UsageError> {
        let name = exporter.name();
        if self.value.is_some() && !exporter.chooses_value() {
            let why = format!("--value does not apply to {name}; it selects the value of stacks");
            return Err(UsageError(why));
        }
        if !self.with.is_empty() && !exporter.takes_profiles() {
            let why = format!("--with does not apply to {name}; only perfetto adds such a profile");
            return Err(UsageError(why));
        }
        Ok(())
    }
}
