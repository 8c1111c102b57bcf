//! How many traces a command reads at once.

use super::trace::TraceArgs;
use crate::trace::many::Pace;

#[derive(clap::Args, Clone, Copy, Default)]
pub(crate) struct JobsArgs {
    /// Read N traces at once [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
}

impl JobsArgs {
    /// The pace of [`crate::trace::many::read_many`]. `noun` is what the progress line counts.
    pub(crate) fn pace(self, reading: &TraceArgs, noun: &'static str) -> Pace {
        Pace { jobs: self.jobs, shows_progress: reading.shows_progress(), noun }
    }
}
