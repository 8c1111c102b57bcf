//! Live, reserved and driver bytes over time, for formats with curves.

mod known_series;
mod levels;

pub(super) use known_series::KnownSeries;
pub(super) use levels::{LevelTracker, Levels};
