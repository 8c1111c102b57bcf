//! Live, reserved and driver bytes over time, for formats with curves.

mod intervals;
mod known_series;
mod levels;

pub(super) use intervals::{LevelInterval, read_intervals};
pub(super) use known_series::KnownSeries;
pub(super) use levels::{LevelTracker, Levels, change_parts};
