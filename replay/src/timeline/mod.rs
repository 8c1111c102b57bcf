//! Steps, ranges, phases and marks of a run, and series of values over them.

pub mod bins;
pub mod marks;
pub mod nvtx_ranges;
pub mod phases;
pub mod step_counter;
pub mod step_series;
pub mod steps;
pub mod time_spec;
